//! Checkpoints and exports of vocabulary-parallel pipelines hold the ordinary model, for any number of ranks.

use crate::model::{BOTH, NOTHING, Parallel, TIED, batch, builder, weights};
use crate::plain::{Plain, plain_step, plain_weights};
use burn::optim::{AdamWConfig, ModuleOptimizer};
use burn::tensor::Device;
use burn_pipeline::link::Threads;
use burn_pipeline::stage::Names;
use burn_pipeline::train::{Checkpoint, Checkpoints, Pretrained};
use burn_pipeline::{Pipeline, StageBox};
use pipeline_tests::reference::Reference;
use tempfile::tempdir;

const RATE: f64 = 0.01;

fn optimizer() -> ModuleOptimizer {
    AdamWConfig::new().init()
}

fn pipeline(parallel: Parallel, ranks: usize) -> Pipeline {
    builder(parallel, ("1F1B", 1), ranks, 4).optimizer(optimizer).build().unwrap()
}

fn step(pipeline: &mut Pipeline) -> f64 {
    pipeline.step(batch(8), RATE).unwrap().loss
}

#[test]
fn a_checkpoint_of_any_number_of_ranks_is_resumed_on_any_other() {
    resumed(&[(BOTH, 2), (BOTH, 3), (BOTH, 5), (NOTHING, 2)], &[(BOTH, 1), (BOTH, 2), (BOTH, 7), (NOTHING, 2)]);
}

#[test]
fn a_checkpoint_of_one_matrix_is_resumed_on_any_number_of_ranks() {
    resumed(&[(TIED, 2), (TIED, 5)], &[(TIED, 1), (TIED, 3), (TIED, 5)]);
}

fn resumed(from: &[(Parallel, usize)], to: &[(Parallel, usize)]) {
    let folder = tempdir().unwrap();
    for from in from {
        let mut saved = pipeline(from.0, from.1);
        step(&mut saved);
        step(&mut saved);
        let path = saved.save(&Checkpoints::new(folder.path().join("saved")), &()).unwrap();
        let (held, exported) = (weights(&mut saved), folder.path().join("from.safetensors"));
        saved.export(&exported).unwrap();
        let losses = [step(&mut saved), step(&mut saved)];
        for to in to {
            let (place, mut resumed) = (format!("from {from:?} to {to:?}"), pipeline(to.0, to.1));
            resumed.load(&Checkpoint::open(&path).unwrap()).unwrap();
            assert!(weights(&mut resumed) == held, "{place}: other weights");
            let again = folder.path().join("to.safetensors");
            resumed.export(&again).unwrap();
            assert!(std::fs::read(&again).unwrap() == std::fs::read(&exported).unwrap(), "{place}: another export");
            // Without the saved moments, the next step would change every weight by as much as the learning rate.
            for expected in losses {
                let loss = step(&mut resumed);
                assert!((loss - expected).abs() < 1e-5 * expected, "{place}: loss {loss} for {expected}");
            }
        }
    }
}

#[test]
fn a_checkpoint_is_the_ordinary_models_and_its_export_is_pretrained_weights() {
    is_the_ordinary_models(BOTH, 3, Plain::new());
    is_the_ordinary_models(BOTH, 5, Plain::new());
}

#[test]
fn a_checkpoint_of_one_matrix_is_that_of_a_model_that_ties_both_layers() {
    is_the_ordinary_models(TIED, 3, Plain::tied());
}

fn is_the_ordinary_models(parallel: Parallel, ranks: usize, model: Plain) {
    let folder = tempdir().unwrap();
    let mut saved = pipeline(parallel, ranks);
    step(&mut saved);
    let path = saved.save(&Checkpoints::new(folder.path().join("saved")), &()).unwrap();
    let (checkpoint, names) = (Checkpoint::open(path).unwrap(), Names::default());
    let model = checkpoint.load_module(model, &names).unwrap();
    assert_eq!(plain_weights(&model), weights(&mut saved));
    let optimizer = checkpoint.load_optimizer(optimizer(), &model, &names).unwrap();
    let mut plain = Reference::resumed(model, optimizer);
    let exported = folder.path().join("model.safetensors");
    saved.export(&exported).unwrap();
    let mut pretrained = pipeline(parallel, 2);
    let store = move || burn::store::SafetensorsStore::from_file(exported.clone());
    pretrained.load_pretrained(&Pretrained::new(store)).unwrap();
    assert_eq!(weights(&mut pretrained), weights(&mut saved));
    for _ in 0..2 {
        let (expected, loss) = (plain_step(&mut plain, &[2; 4], RATE, None, 1.0).0, step(&mut saved));
        assert!((loss - expected).abs() < 1e-5 * expected, "loss {loss} for {expected}");
    }
}

#[test]
fn ranks_that_are_processes_save_load_and_export_the_same() {
    let folder = tempdir().unwrap();
    let mut threads = pipeline(BOTH, 2);
    step(&mut threads);
    let (held, expected) = (weights(&mut threads), folder.path().join("threads.safetensors"));
    threads.export(&expected).unwrap();
    let links = Threads::new(2);
    std::thread::scope(|scope| {
        for rank in 0..2 {
            let (links, folder, held, expected) = (links.clone(), folder.path(), &held, &expected);
            scope.spawn(move || {
                let build = |link| {
                    let builder = builder(BOTH, ("1F1B", 1), 2, 4).optimizer(optimizer);
                    builder.build_rank(Box::new(link)).unwrap()
                };
                let mut pipeline = build(links.link(rank, Device::flex()));
                step(&mut pipeline);
                assert_eq!(&weights(&mut pipeline), held, "rank {rank}");
                let path = pipeline.save(&Checkpoints::new(folder.join("saved")), &()).unwrap();
                let exported = folder.join("processes.safetensors");
                pipeline.export(&exported).unwrap();
                if rank == 0 {
                    assert!(std::fs::read(&exported).unwrap() == std::fs::read(expected).unwrap());
                }
                step(&mut pipeline);
                pipeline.load(&Checkpoint::open(&path).unwrap()).unwrap();
                assert_eq!(&weights(&mut pipeline), held, "rank {rank}");
            });
        }
    });
}

#[test]
fn a_name_that_a_stage_claims_too_is_refused() {
    let clash = builder(BOTH, ("1F1B", 1), 2, 4).stages(|at| {
        let stage: StageBox = crate::model::stage_or_broken(BOTH, None, at);
        stage.named(Names::default().renamed(|_| "token.weight".to_owned()))
    });
    let error = clash.build().unwrap_err().to_string();
    assert!(error.contains("`token.weight`"), "{error}");
}
