//! Checkpoints of models with tied parameters: the number of copies depends on the cut, the trained values do not.

use super::export::on_each_rank;
use super::{RATE, weights};
use crate::cases::{range, read, sizes};
use crate::shared::model::{SMALL, Text, Tied, declared, part, stage};
use burn::optim::{AdamWConfig, SgdConfig, momentum::MomentumConfig};
use burn::store::{IdentityAdapter, SafetensorsStore};
use burn::tensor::Device;
use burn_pipeline::schedule::Size;
use burn_pipeline::stage::{Accumulation, Names};
use burn_pipeline::train::{Builder, Checkpoint, CheckpointError, Checkpoints, Export, Pipeline, Pretrained};
use pipeline_tests::reference::{Reference, whole};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use tempfile::{TempDir, tempdir};

const SAMPLES: usize = 4;

#[derive(Clone, Copy, Debug)]
struct Cut(&'static str, usize, usize);

/// From one stage, which holds the table and the bias once, to eight biases.
const CUTS: [Cut; 7] = [
    Cut("GPipe", 1, 1),
    Cut("1F1B", 2, 1),
    Cut("Interleaved1F1B", 3, 2),
    Cut("1F1B", 4, 1),
    Cut("ZBV", 2, 2),
    Cut("Interleaved1F1B", 4, 2),
    Cut("Interleaved1F1B", 1, 3),
];

/// The table is tied, and the bias too if `biases`.
fn builder(Cut(schedule, ranks, chunks): Cut, biases: bool) -> Builder {
    let size = Size { ranks, chunks, microbatches: SAMPLES };
    let make = stage(SMALL);
    let builder = Pipeline::builder().schedule(schedule, size).devices(vec![Device::flex()]);
    let builder = builder.accumulation(Accumulation::Ordered).optimizer(|| AdamWConfig::new().init());
    let builder = builder.stages(move |at| {
        let (first, index) = (at.layers(SMALL.layers).start, at.index);
        // Every stage's bias has its own name, so that a cut has names that another one lacks.
        let renamed = move |name: &str| if name == "bias" { format!("biases.{index}") } else { name.to_owned() };
        make(at).named(Names::default().layers_from("blocks", first).renamed(renamed))
    });
    let [tables, bias] = declared();
    let builder = builder.share(tables);
    if biases { builder.share(bias) } else { builder }
}

fn text(step: u64) -> Text {
    Text::new(SMALL, SAMPLES, 60 + 2 * step)
}

fn saved(pipeline: &mut Pipeline, folder: &TempDir) -> Checkpoint {
    let checkpoints = Checkpoints::new(folder.path());
    pipeline.save(&checkpoints, &()).unwrap();
    checkpoints.latest().unwrap()
}

fn assert_close(got: f64, expected: f64, what: &str) {
    assert!((got - expected).abs() <= 1e-5 * expected.abs().max(1.0), "{what}: {got} for {expected}");
}

#[test]
fn any_cut_takes_up_any_other_with_the_losses_of_the_tied_model_on_one_device() {
    let mut reference = Reference::new(part(SMALL, &whole()));
    let cut = sizes(SAMPLES, SAMPLES);
    let mut folder = tempdir().unwrap();
    let mut pipeline = builder(CUTS[0], true).build().unwrap();
    for (step, next) in (0..).zip(CUTS.into_iter().cycle().skip(1).take(2 * CUTS.len())) {
        let text = text(step);
        let expected = reference.step(&cut, RATE, None, |model, i| text.loss(model, range(&cut, i)));
        let loss = pipeline.step(text.batch(), RATE).unwrap().loss;
        assert_close(loss, expected.loss, &format!("step {step}, before {next:?}"));
        let checkpoint = saved(&mut pipeline, &folder);
        pipeline = builder(next, true).build().unwrap();
        pipeline.load(&checkpoint).unwrap();
        folder = tempdir().unwrap();
    }
}

#[test]
fn a_cut_that_takes_up_another_is_bit_equal_to_one_that_never_moved() {
    // Two copies of the table have one sum in any order. So biases are not tied; each cut has its own, and only
    // cuts with equal numbers of stages are compared.
    let folder = tempdir().unwrap();
    let mut stays = builder(Cut("1F1B", 4, 1), false).build().unwrap();
    let losses: Vec<f64> = (0..6).map(|step| stays.step(text(step).batch(), RATE).unwrap().loss).collect();
    let mut moves = builder(Cut("1F1B", 4, 1), false).build().unwrap();
    let mut steps = (0..).zip(&losses);
    for next in [Cut("ZBV", 2, 2), Cut("Interleaved1F1B", 1, 4), Cut("GPipe", 4, 1)] {
        for (step, expected) in steps.by_ref().take(2) {
            let loss = moves.step(text(step).batch(), RATE).unwrap().loss;
            assert_eq!(loss, *expected, "step {step}, before {next:?}");
        }
        let checkpoint = saved(&mut moves, &folder);
        moves = builder(next, false).build().unwrap();
        moves.load(&checkpoint).unwrap();
    }
    let weights = |pipeline: &mut Pipeline| pipeline.weights().unwrap().iter().flatten().map(read).collect::<Vec<_>>();
    assert_eq!(weights(&mut moves), weights(&mut stays));
}

#[test]
fn the_tied_model_on_one_device_takes_up_every_cut_with_its_optimizer() {
    let cut = sizes(SAMPLES, SAMPLES);
    for from in CUTS {
        let folder = tempdir().unwrap();
        let mut pipeline = builder(from, true).build().unwrap();
        for step in 0..2 {
            pipeline.step(text(step).batch(), RATE).unwrap();
        }
        let checkpoint = saved(&mut pipeline, &folder);
        let names =
            || Names::default().renamed(|name| if name == "bias" { "biases.0".to_owned() } else { name.to_owned() });
        let model: Tied = checkpoint.load_module(part(SMALL, &whole()), &names()).unwrap();
        let optimizer = checkpoint.load_optimizer(AdamWConfig::new().init(), &model, &names()).unwrap();
        let mut reference = Reference::resumed(model, optimizer);
        for step in 2..4 {
            let text = text(step);
            let expected = reference.step(&cut, RATE, None, |model, i| text.loss(model, range(&cut, i)));
            let loss = pipeline.step(text.batch(), RATE).unwrap().loss;
            assert_close(loss, expected.loss, &format!("{from:?}, step {step}"));
        }
    }
}

#[test]
fn a_stage_that_does_not_declare_what_it_holds_alone_takes_up_all_copies() {
    let folder = tempdir().unwrap();
    let mut pipeline = builder(Cut("1F1B", 2, 1), true).build().unwrap();
    pipeline.step(text(0).batch(), RATE).unwrap();
    let checkpoint = saved(&mut pipeline, &folder);
    // Stages that hold a parameter alone need no declaration.
    let size = Size { ranks: 1, chunks: 1, microbatches: SAMPLES };
    let one = Pipeline::builder().schedule("GPipe", size).devices(vec![Device::flex()]);
    let one = one.accumulation(Accumulation::Ordered).optimizer(|| AdamWConfig::new().init());
    let make = stage(SMALL);
    let renamed = |name: &str| if name == "bias" { "biases.0".to_owned() } else { name.to_owned() };
    let one = one.stages(move |at| make(at).named(Names::default().renamed(renamed)));
    let mut one = one.build().unwrap();
    one.load(&checkpoint).unwrap();
    let (got, expected) = [&mut one, &mut pipeline].map(|p| p.step(text(1).batch(), RATE).unwrap().loss).into();
    assert_close(got, expected, "the step after");
}

#[test]
fn a_tied_parameter_is_exported_once_under_its_first_name_and_loaded_for_all_its_copies() {
    for cut in CUTS {
        let folder = tempdir().unwrap();
        let mut pipeline = builder(cut, true).build().unwrap();
        pipeline.step(text(0).batch(), RATE).unwrap();
        let path = folder.path().join("model.safetensors");
        pipeline.export(&path).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let stored = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let names: BTreeSet<String> = stored.names().into_iter().map(ToString::to_string).collect();
        let blocks = (0..SMALL.layers).flat_map(|block| ["weight", "bias"].map(|end| format!("blocks.{block}.{end}")));
        let expected = ["token", "biases.0"].map(ToOwned::to_owned).into_iter().chain(blocks).collect();
        assert_eq!(names, expected, "{cut:?}");
        // A checkpoint and ranks that are apart write the same file.
        saved(&mut pipeline, &folder).export(folder.path().join("of-checkpoint")).unwrap();
        assert!(std::fs::read(folder.path().join("of-checkpoint")).unwrap() == bytes, "{cut:?}");
        on_each_rank(&builder(cut, true), cut.1, |_, pipeline| {
            pipeline.step(text(0).batch(), RATE).unwrap();
            pipeline.export(folder.path().join("apart")).unwrap();
        });
        assert!(std::fs::read(folder.path().join("apart")).unwrap() == bytes, "{cut:?}");
        let stored = Pretrained::new(move || SafetensorsStore::from_file(&path));
        let mut second = builder(CUTS[3], true).build().unwrap();
        second.load_pretrained(&stored).unwrap();
        let [got, expected] = [&mut second, &mut pipeline].map(|p| p.eval(text(1).batch()).unwrap().loss.unwrap());
        assert_close(got, expected, "the model loaded");
    }
}

#[test]
fn the_name_of_a_copy_may_be_renamed_where_the_copy_is_not_written() {
    let folder = tempdir().unwrap();
    let mut pipeline = builder(CUTS[1], true).build().unwrap();
    let like = Pretrained::folder("nowhere").rename("embedding", "token").rename("head", "scores");
    let path = folder.path().join("model.safetensors");
    pipeline.export_as(&path, Export::from(IdentityAdapter).like(&like)).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let names = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert!(names.tensor("embedding").is_ok() && names.tensor("head").is_err());
}

/// A job whose tables are not tied: they start and train separately.
fn untied() -> Pipeline {
    let [_, bias] = declared();
    let Cut(schedule, ranks, chunks) = CUTS[1];
    let size = Size { ranks, chunks, microbatches: SAMPLES };
    let make = stage(SMALL);
    let untied = Pipeline::builder().schedule(schedule, size).devices(vec![Device::flex()]);
    let untied = untied.optimizer(|| AdamWConfig::new().init()).share(bias).stages(move |at| {
        let (first, index) = (at.layers(SMALL.layers).start, at.index);
        let renamed = move |name: &str| if name == "bias" { format!("biases.{index}") } else { name.to_owned() };
        make(at).named(Names::default().layers_from("blocks", first).renamed(renamed))
    });
    untied.build().unwrap()
}

/// Asserts that a load is refused with the names of both copies, and changes nothing.
fn refused(pipeline: &mut Pipeline, load: impl Fn(&mut Pipeline) -> Result<(), CheckpointError>) {
    let before = weights(pipeline);
    let error = load(pipeline).unwrap_err();
    let CheckpointError::Copies { first, second } = &error else { panic!("{error}") };
    assert_eq!(BTreeSet::from([&**first, &**second]), BTreeSet::from(["scores", "token"]), "{error}");
    assert_eq!(weights(pipeline), before, "{error}");
}

#[test]
fn copies_that_were_saved_unequal_are_refused() {
    let folder = tempdir().unwrap();
    let mut pipeline = untied();
    pipeline.step(text(0).batch(), RATE).unwrap();
    let checkpoint = saved(&mut pipeline, &folder);
    // If they are tied in one stage, the last stage's table is not a parameter of the model.
    let error = builder(CUTS[0], true).build().unwrap().load(&checkpoint).unwrap_err();
    assert!(matches!(&error, CheckpointError::UnknownParameters { names } if names == &["scores"]), "{error}");
    // If they are tied over stages, they would differ.
    let file = folder.path().join("untied.safetensors");
    pipeline.export(&file).unwrap();
    let stored = Pretrained::new(move || SafetensorsStore::from_file(&file));
    for cut in [CUTS[1], CUTS[4], CUTS[6]] {
        let mut tied = builder(cut, true).build().unwrap();
        refused(&mut tied, |tied| tied.load(&checkpoint));
        refused(&mut tied, |tied| tied.load_weights(&checkpoint));
        refused(&mut tied, |tied| tied.load_pretrained(&stored));
    }
    on_each_rank(&builder(CUTS[1], true), 2, |_, tied| {
        for error in [tied.load(&checkpoint), tied.load_pretrained(&stored)].map(Result::unwrap_err) {
            assert!(error.to_string().contains("`scores`") && error.to_string().contains("`token`"), "{error}");
        }
    });
}

#[test]
fn any_one_stored_copy_is_loaded_for_all() {
    let folder = tempdir().unwrap();
    let mut pipeline = builder(CUTS[1], true).build().unwrap();
    pipeline.step(text(0).batch(), RATE).unwrap();
    let path = folder.path().join("model.safetensors");
    pipeline.export(&path).unwrap();
    // The head alone is stored, as some programs do.
    let head = Pretrained::new(move || SafetensorsStore::from_file(&path)).rename("token", "scores");
    for cut in [CUTS[1], CUTS[3], CUTS[4]] {
        let mut tied = builder(cut, true).build().unwrap();
        tied.load_pretrained(&head).unwrap();
        assert_eq!(copies(&mut tied), vec![table(&mut pipeline); 2], "{cut:?}");
    }
    // A model that does not tie them takes the head alone.
    let mut untied = untied();
    untied.load_pretrained(&head.optional(|name| name == "token")).unwrap();
    assert_eq!(copies(&mut untied)[1], table(&mut pipeline));
}

/// The values of both copies of the table.
fn copies(pipeline: &mut Pipeline) -> Vec<Vec<f32>> {
    let named = pipeline.named_weights().unwrap().into_iter().flatten();
    named.filter(|w| ["token", "scores"].contains(&&*w.names[0])).map(|w| read(&w.value)).collect()
}

fn table(pipeline: &mut Pipeline) -> Vec<f32> {
    copies(pipeline).swap_remove(0)
}

#[test]
fn copies_whose_optimizers_keep_different_state_are_refused_or_compared_after_the_next_step() {
    let folder = tempdir().unwrap();
    let made = AtomicUsize::new(0);
    // Momentum makes no difference before the second step.
    let uneven = move || match made.fetch_add(1, Ordering::Relaxed) {
        0 => SgdConfig::new().init(),
        _ => SgdConfig::new().with_momentum(Some(MomentumConfig::new())).init(),
    };
    let mut pipeline = builder(CUTS[1], true).optimizer(uneven).build().unwrap();
    pipeline.step(text(0).batch(), RATE).unwrap();
    let checkpoint = saved(&mut pipeline, &folder);
    pipeline.step(text(1).batch(), RATE).unwrap();
    assert_ne!(copies(&mut pipeline)[0], copies(&mut pipeline)[1], "this test needs copies that differ");
    refused(&mut pipeline, |pipeline| pipeline.load(&checkpoint));
    pipeline.load_weights(&checkpoint).unwrap();
    let error = pipeline.step(text(1).batch(), RATE).unwrap_err().to_string();
    assert!(error.contains("`table`") && error.contains("scores"), "{error}");
}
