//! Checkpoints over pretrained weights hold what trains alone, resume on any cut once the same weights are loaded, and
//! are refused over others.

use super::base::{builder, bytes, named, step};
use burn::store::IdentityAdapter;
use burn_pipeline::train::{Checkpoint, CheckpointError, Export, Pretrained};
use burn_pipeline::{Builder, Checkpoints, Pipeline, Size};
use std::path::Path;
use tempfile::{TempDir, tempdir};

/// Writes a base, the model's weights without adapters, as a folder of another program.
fn stored(seed: u64, folder: &Path) -> Pretrained {
    let mut whole = builder(seed, "GPipe", 1).build().unwrap();
    whole.export_as(folder.join("model.safetensors"), Export::from(IdentityAdapter).merged()).unwrap();
    Pretrained::folder(folder)
}

/// A pipeline with the base loaded, and checkpoints over it.
fn started(folder: &TempDir) -> (Pipeline, Pretrained, Checkpoints) {
    let base = folder.path().join("base");
    std::fs::create_dir_all(&base).unwrap();
    let base = stored(3, &base);
    let mut pipeline = builder(5, "1F1B", 2).build().unwrap();
    pipeline.load_pretrained(&base).unwrap();
    (pipeline, base, Checkpoints::new(folder.path().join("tuned")).over_pretrained())
}

/// Another cut, with the base loaded.
fn loaded(builder: Builder, base: &Pretrained) -> Pipeline {
    let mut pipeline = builder.build().unwrap();
    pipeline.load_pretrained(base).unwrap();
    pipeline
}

#[test]
fn checkpoints_over_pretrained_weights_are_small_and_resume_on_other_cuts() {
    let folder = tempdir().unwrap();
    let (mut first, base, checkpoints) = started(&folder);
    for at in 0..4 {
        step(&mut first, at);
        first.save(&checkpoints, &at).unwrap();
    }
    let (of_base, of_four) = (bytes(&folder.path().join("base")), bytes(&folder.path().join("tuned")));
    assert!(of_four < of_base / 4, "{of_four} of {of_base}");
    let latest = checkpoints.latest_intact().unwrap();
    let losses: Vec<f64> = (4..6).map(|at| step(&mut first, at)).collect();
    let mut sharded = loaded(builder(8, "1F1B", 2).data_parallel(2).sharded(true), &base);
    sharded.load(&latest).unwrap();
    let mut whole = loaded(builder(8, "1F1B", 1), &base);
    whole.load(&latest).unwrap();
    assert!(named(&mut sharded) == named(&mut whole));
    let folded = builder(8, "GPipe", 1).schedule("DualPipeV", Size::new(2, 4).with_chunks(2));
    for other in [builder(8, "ZBH1", 4), builder(8, "GPipe", 1), folded] {
        let mut second = loaded(other, &base);
        second.load(&latest).unwrap();
        let resumed: Vec<f64> = (4..6).map(|at| step(&mut second, at)).collect();
        assert_eq!(resumed, losses);
        assert!(named(&mut second) == named(&mut first));
        // It goes on over the same base.
        let saved = second.save(&Checkpoints::new(folder.path().join("again")).over_pretrained(), &()).unwrap();
        assert!(bytes(&saved) < of_base / 8);
    }
}

#[test]
fn what_is_no_longer_as_it_was_loaded_is_written() {
    let folder = tempdir().unwrap();
    let (mut first, base, checkpoints) = started(&folder);
    // A job's own checkpoint changes the weights after they were loaded.
    let own = builder(4, "1F1B", 2).build().unwrap().save(&Checkpoints::new(folder.path().join("own")), &()).unwrap();
    first.load_weights(&Checkpoint::open(own).unwrap()).unwrap();
    let saved = first.save(&checkpoints, &()).unwrap();
    assert!(bytes(&saved) > bytes(&folder.path().join("base")) * 9 / 10);
    let mut second = loaded(builder(8, "GPipe", 1), &base);
    second.load(&checkpoints.latest().unwrap()).unwrap();
    assert!(named(&mut second) == named(&mut first));
}

#[test]
fn a_model_that_has_not_the_base_is_refused_unchanged() {
    let folder = tempdir().unwrap();
    let (mut first, base, checkpoints) = started(&folder);
    first.save(&checkpoints, &()).unwrap();
    let latest = checkpoints.latest().unwrap();
    let other = folder.path().join("other");
    std::fs::create_dir_all(&other).unwrap();
    let other = stored(4, &other);
    let without = builder(8, "GPipe", 1).build().unwrap();
    for mut second in [without, loaded(builder(8, "ZBH1", 2), &other)] {
        let before = named(&mut second);
        let error = second.load(&latest).unwrap_err();
        assert!(matches!(error, CheckpointError::LeftToModel { .. }), "{error}");
        for says in ["`layers.0.weight`", "load_pretrained", &*folder.path().join("base").to_string_lossy()] {
            assert!(error.to_string().contains(says), "{says} is not in: {error}");
        }
        assert!(named(&mut second) == before);
        // The refusal costs nothing: the right base can still be loaded.
        second.load_pretrained(&base).unwrap();
        second.load(&latest).unwrap();
        assert!(named(&mut second) == named(&mut first));
    }
    // Its own files are whole, and are not the model.
    latest.verify().unwrap();
    let error = latest.export(folder.path().join("whole")).unwrap_err();
    assert!(error.to_string().contains("export from there"), "{error}");
}

#[test]
fn a_pipeline_without_pretrained_weights_has_nothing_to_leave_out() {
    let folder = tempdir().unwrap();
    let mut pipeline = builder(3, "1F1B", 2).build().unwrap();
    let error = pipeline.save(&Checkpoints::new(folder.path()).over_pretrained(), &()).unwrap_err();
    assert!(matches!(error, CheckpointError::NothingLoaded), "{error}");
    pipeline.save(&Checkpoints::new(folder.path()), &()).unwrap();
}
