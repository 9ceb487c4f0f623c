//! Checkpoints, exports and pretrained weights of expert-parallel models: one model, whatever grid holds it.

use super::{Grid, SAMPLES, on, parallel_config};
use crate::cases::{Text, floats};
use burn::optim::{AdamWConfig, ModuleOptimizer};
use burn::store::SafetensorsStore;
use burn::tensor::Device;
use burn_pipeline::link::Threads;
use burn_pipeline::train::{Checkpoint, Checkpoints, Pretrained};
use burn_pipeline::{Builder, Pipeline};
use burn_pipeline_moe::router::Capacity;
use pipeline_examples::moe::gpt::MoeGptConfig;
use pipeline_tests::reference::{self, whole};
use tempfile::{TempDir, tempdir};

const RATE: f64 = 0.01;
const GRIDS: [Grid; 5] = [(1, 1, 1), (1, 2, 1), (2, 4, 1), (2, 1, 2), (2, 2, 2)];

fn optimizer() -> ModuleOptimizer {
    AdamWConfig::new().init()
}

fn model() -> MoeGptConfig {
    parallel_config(Capacity::Dropless)
}

fn adamw(grid: Grid) -> Builder {
    on(&model(), ("1F1B", 1), grid).optimizer(optimizer)
}

fn step(pipeline: &mut Pipeline) -> f64 {
    pipeline.step(Text::new(1, SAMPLES).batch(), RATE).unwrap().loss
}

fn weights(pipeline: &mut Pipeline) -> Vec<Vec<f32>> {
    pipeline.weights().unwrap().iter().flatten().map(floats).collect()
}

/// A checkpoint after two steps on a grid.
fn saved(grid: Grid, folder: &TempDir) -> (Pipeline, Checkpoint) {
    let mut pipeline = adamw(grid).build().unwrap();
    step(&mut pipeline);
    step(&mut pipeline);
    let path = pipeline.save(&Checkpoints::new(folder.path().join(format!("{grid:?}"))), &()).unwrap();
    (pipeline, Checkpoint::open(path).unwrap())
}

/// The moments that a checkpoint holds, loaded as AdamW's for an ordinary model.
fn loaded(checkpoint: &Checkpoint) -> Vec<Vec<f32>> {
    let names = model().names(&whole()).unwrap();
    let module = checkpoint.load_module(model().part(&whole()).unwrap(), &names).unwrap();
    checkpoint.load_optimizer(optimizer(), &module, &names).unwrap();
    reference::weights(&module)
}

#[test]
fn a_checkpoint_of_any_grid_is_resumed_on_any_other() {
    let folder = tempdir().unwrap();
    for from in [GRIDS[0], GRIDS[1], GRIDS[4]] {
        let (mut pipeline, checkpoint) = saved(from, &folder);
        let (held, exported) = (weights(&mut pipeline), folder.path().join("from.safetensors"));
        assert_eq!(loaded(&checkpoint), held, "{from:?}: the ordinary model");
        pipeline.export(&exported).unwrap();
        let losses = [step(&mut pipeline), step(&mut pipeline)];
        for (to, sharded) in GRIDS.map(|grid| (grid, false)).into_iter().chain([(GRIDS[1], true), (GRIDS[4], true)]) {
            let place = format!("from {from:?} to {to:?}, sharded: {sharded}");
            let mut resumed = adamw(to).sharded(sharded).build().unwrap();
            resumed.load(&checkpoint).unwrap();
            assert!(weights(&mut resumed) == held, "{place}: other weights");
            let again = folder.path().join("to.safetensors");
            resumed.export(&again).unwrap();
            assert!(std::fs::read(&again).unwrap() == std::fs::read(&exported).unwrap(), "{place}: another export");
            let saved = resumed.save(&Checkpoints::new(folder.path().join("again")), &()).unwrap();
            assert!(files(&Checkpoint::open(saved).unwrap()) == files(&checkpoint), "{place}: another state");
            // Without the saved moments, the next step would change every weight by as much as the learning rate.
            for expected in losses {
                let loss = step(&mut resumed);
                assert!((loss - expected).abs() < 1e-5 * expected, "{place}: loss {loss} for {expected}");
            }
        }
    }
}

/// All tensors in a checkpoint's files by name: weights and moments of every stage.
fn files(checkpoint: &Checkpoint) -> std::collections::BTreeMap<String, Vec<u8>> {
    let mut tensors = std::collections::BTreeMap::new();
    for entry in std::fs::read_dir(checkpoint.folder()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "safetensors") {
            let bytes = std::fs::read(path).unwrap();
            let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
            tensors.extend(file.tensors().into_iter().map(|(name, view)| (name, view.data().to_vec())));
        }
    }
    tensors
}

#[test]
fn pretrained_weights_are_loaded_in_pieces() {
    let folder = tempdir().unwrap();
    let (mut one, file) = (adamw((1, 1, 1)).build().unwrap(), folder.path().join("one.safetensors"));
    step(&mut one);
    one.export(&file).unwrap();
    for grid in GRIDS {
        let mut pipeline = adamw(grid).build().unwrap();
        let path = file.clone();
        pipeline.load_pretrained(&Pretrained::new(move || SafetensorsStore::from_file(&path))).unwrap();
        assert!(weights(&mut pipeline) == weights(&mut one), "{grid:?}");
        step(&mut pipeline);
    }
}

#[test]
fn processes_save_export_and_load_as_threads_of_one_do() {
    let (folder, grid) = (tempdir().unwrap(), (2, 2, 2));
    let (mut threads, checkpoint) = saved(grid, &folder);
    let (held, exported) = (weights(&mut threads), folder.path().join("threads.safetensors"));
    threads.export(&exported).unwrap();
    let links = Threads::new(8);
    std::thread::scope(|scope| {
        for rank in 0..8 {
            let (links, folder, held, exported, checkpoint) = (links.clone(), &folder, &held, &exported, &checkpoint);
            scope.spawn(move || {
                let mut pipeline = adamw(grid).build_rank(Box::new(links.link(rank, Device::flex()))).unwrap();
                pipeline.load(checkpoint).unwrap();
                assert!(weights(&mut pipeline) == *held, "rank {rank}");
                let file = folder.path().join("processes.safetensors");
                pipeline.export(&file).unwrap();
                let saved = pipeline.save(&Checkpoints::new(folder.path().join("by-processes")), &()).unwrap();
                assert!(std::fs::read(&file).unwrap() == std::fs::read(exported).unwrap(), "rank {rank}");
                assert!(files(&Checkpoint::open(saved).unwrap()) == files(checkpoint), "rank {rank}");
                step(&mut pipeline);
            });
        }
    });
}
