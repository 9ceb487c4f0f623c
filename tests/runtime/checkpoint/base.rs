//! Checkpoints over a base hold what trains alone, resume on any cut with the same losses, and are refused without
//! their base.

use burn::module::{Lora, Module};
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Tensor, activation::tanh};
use burn_pipeline::layers::{Layer, LayerContext, Model, Sequential};
use burn_pipeline::train::{Checkpoint, CheckpointError};
use burn_pipeline::{Accumulation, Batch, Builder, Checkpoints, Pipeline, Size};
use pipeline_tests::device::device;
use std::collections::BTreeMap;
use std::path::Path;
use tempfile::{TempDir, tempdir};

const WIDTH: usize = 256;
const LAYERS: usize = 4;

fn model(seed: u64) -> Model {
    let make = |at: &LayerContext| LinearConfig::new(WIDTH, WIDTH).init(&at.device).apply_lora(Lora::new(1, 2.0));
    let forward = |own: &Linear, x: Tensor<2>| x.clone() + tanh(own.forward(x));
    let loss = |y: Tensor<2>, wanted: Tensor<2>| (y - wanted).square().mean();
    Sequential::new().repeat(LAYERS, Layer::new("layers", make, forward)).seed(seed).loss(loss)
}

pub(super) fn builder(seed: u64, schedule: &str, ranks: usize) -> Builder {
    Pipeline::builder()
        .layers(model(seed))
        .schedule(schedule, Size::new(ranks, 4))
        .devices(vec![device()])
        .accumulation(Accumulation::Ordered)
        .optimizer(|| AdamWConfig::new().init())
}

pub(super) fn step(pipeline: &mut Pipeline, step: usize) -> f64 {
    let values = |seed| pipeline_tests::noise::noise(seed + step as u64, 8 * WIDTH);
    let [x, wanted] = [5, 70].map(|seed| Tensor::<1>::from_floats(&*values(seed), &device()).reshape([8, WIDTH]));
    pipeline.step(Batch::new(x).target(wanted), 1e-2).unwrap().loss
}

pub(super) fn named(pipeline: &mut Pipeline) -> BTreeMap<String, Vec<f32>> {
    let weights = pipeline.named_weights().unwrap().into_iter().flatten();
    weights.map(|w| (w.names[0].clone(), w.value.to_data().unwrap().iter().collect())).collect()
}

/// The bytes of all files in a folder, and in its folders.
pub(super) fn bytes(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).unwrap().map(Result::unwrap);
    entries
        .map(|entry| if entry.path().is_dir() { bytes(&entry.path()) } else { entry.metadata().unwrap().len() })
        .sum()
}

/// A pipeline, its base, and the checkpoints over it.
fn started(folder: &TempDir) -> (Pipeline, Checkpoint, Checkpoints) {
    let mut pipeline = builder(3, "1F1B", 2).build().unwrap();
    let base = pipeline.save(&Checkpoints::new(folder.path().join("base")), &()).unwrap();
    let base = Checkpoint::open(base).unwrap();
    let checkpoints = Checkpoints::new(folder.path().join("tuned")).over(&base);
    (pipeline, base, checkpoints)
}

#[test]
fn ten_checkpoints_over_a_base_are_small_and_resume_on_another_cut() {
    let folder = tempdir().unwrap();
    let (mut first, base, checkpoints) = started(&folder);
    for at in 0..10 {
        step(&mut first, at);
        first.save(&checkpoints, &at).unwrap();
    }
    let (of_base, of_ten) = (bytes(base.folder()), bytes(&folder.path().join("tuned")));
    assert!(of_base > 4 * (LAYERS * WIDTH * WIDTH) as u64, "{of_base}");
    // Each has adapters and two moments of each: 3 * 2 * WIDTH numbers for a layer of WIDTH * WIDTH, and a manifest.
    assert!(of_ten < of_base / 2, "{of_ten} of {of_base}");
    let losses: Vec<f64> = (10..12).map(|at| step(&mut first, at)).collect();
    for (schedule, ranks) in [("ZBH1", 4), ("GPipe", 1)] {
        let latest = checkpoints.latest_intact().unwrap();
        let mut second = builder(8, schedule, ranks).build().unwrap();
        second.load(&latest).unwrap();
        let resumed: Vec<f64> = (10..12).map(|at| step(&mut second, at)).collect();
        assert_eq!(resumed, losses);
        assert!(named(&mut second) == named(&mut first), "{schedule}");
        // What it exports is whole.
        let mut third = builder(8, schedule, ranks).build().unwrap();
        third.load(&latest).unwrap();
        latest.export(folder.path().join("whole")).unwrap();
        third.export(folder.path().join("own")).unwrap();
        assert!(
            std::fs::read(folder.path().join("whole")).unwrap() == std::fs::read(folder.path().join("own")).unwrap()
        );
    }
}

#[test]
fn what_differs_from_the_base_is_written() {
    let folder = tempdir().unwrap();
    let (_, base, checkpoints) = started(&folder);
    let mut other = builder(4, "1F1B", 2).build().unwrap();
    let saved = other.save(&checkpoints, &()).unwrap();
    assert!(bytes(&saved) > bytes(base.folder()) * 9 / 10);
    let mut back = builder(5, "GPipe", 1).build().unwrap();
    back.load(&checkpoints.latest().unwrap()).unwrap();
    assert!(named(&mut back) == named(&mut other));
}

#[test]
fn a_layer_that_was_frozen_later_keeps_its_moments_over_a_base() {
    let folder = tempdir().unwrap();
    let mut pipeline = builder(3, "1F1B", 2).build().unwrap();
    step(&mut pipeline, 0);
    pipeline.replace_layer(0, |layer: Linear, _: &LayerContext| layer.no_grad()).unwrap();
    let base = pipeline.save(&Checkpoints::new(folder.path().join("base")), &()).unwrap();
    let over = Checkpoints::new(folder.path().join("tuned")).over(&Checkpoint::open(base).unwrap());
    step(&mut pipeline, 1);
    pipeline.save(&over, &()).unwrap();
    let mut second = builder(8, "GPipe", 1).build().unwrap();
    second.replace_layer(0, |layer: Linear, _: &LayerContext| layer.no_grad()).unwrap();
    second.load(&over.latest().unwrap()).unwrap();
    let again = second.save(&Checkpoints::new(folder.path().join("again")), &()).unwrap();
    let fields = |checkpoint: &Checkpoint| -> BTreeMap<String, usize> {
        let entries = checkpoint.parameters().iter();
        entries.map(|entry| (entry.names[0].clone(), entry.optimizer_fields().count())).collect()
    };
    let (saved, loaded) = (fields(&over.latest().unwrap()), fields(&Checkpoint::open(again).unwrap()));
    assert!(saved.iter().any(|(name, fields)| name.starts_with("layers.0") && *fields > 0), "{saved:?}");
    assert_eq!(loaded, saved);
}

#[test]
fn a_checkpoint_is_refused_without_its_base_or_over_another() {
    let folder = tempdir().unwrap();
    let (mut pipeline, base, checkpoints) = started(&folder);
    pipeline.save(&checkpoints, &()).unwrap();
    let latest = checkpoints.latest().unwrap();
    let refused = |says: &str| {
        let mut second = builder(8, "GPipe", 1).build().unwrap();
        let before = named(&mut second);
        let error = second.load(&latest).unwrap_err();
        assert!(error.to_string().contains(says), "{says} is not in: {error}");
        assert!(named(&mut second) == before);
        assert!(latest.verify().is_err());
        error
    };
    // A byte of the base's weights.
    let file = base.folder().join("stage-000.safetensors");
    let whole = std::fs::read(&file).unwrap();
    let mut damaged = whole.clone();
    *damaged.last_mut().unwrap() ^= 1;
    std::fs::write(&file, damaged).unwrap();
    refused("checksum");
    std::fs::write(&file, whole).unwrap();
    // Another base in its place.
    let moved = folder.path().join("moved");
    std::fs::rename(base.folder(), &moved).unwrap();
    assert!(matches!(refused("base"), CheckpointError::Base { .. }));
    let other =
        builder(4, "1F1B", 2).build().unwrap().save(&Checkpoints::new(folder.path().join("other")), &()).unwrap();
    std::fs::rename(other, base.folder()).unwrap();
    assert!(matches!(refused("another checkpoint is there"), CheckpointError::Base { .. }));
    assert!(matches!(pipeline.save(&checkpoints, &()).unwrap_err(), CheckpointError::Base { .. }));
    // A base among the checkpoints could be removed with the old ones.
    let among = Checkpoints::new(folder.path().join("tuned")).over(&latest);
    let error = pipeline.save(&among, &()).unwrap_err();
    assert!(error.to_string().contains("one of the folder's own checkpoints"), "{error}");
}
