//! A damaged checkpoint is refused with the name of the damaged file. Nothing changes, and the previous checkpoint
//! can be loaded.

use super::{Cut, RATE, SAMPLES, weights};
use crate::cases::{Case, Text};
use burn_pipeline::train::{Checkpoint, CheckpointError, Checkpoints, Pipeline};
use std::path::{Path, PathBuf};
use tempfile::{TempDir, tempdir};

const CUT: Cut = Cut { schedule: "1F1B", ranks: 2, chunks: 1 };

/// Two checkpoints, after steps 1 and 2.
fn two(folder: &TempDir) -> (Checkpoints, Pipeline) {
    let (checkpoints, mut pipeline) = (Checkpoints::new(folder.path()), CUT.pipeline());
    for _ in 0..2 {
        pipeline.step(Text::new(SAMPLES).batch(), RATE).unwrap();
        pipeline.save(&checkpoints, &()).unwrap();
    }
    (checkpoints, pipeline)
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn load(checkpoints: &Checkpoints, pipeline: &mut Pipeline) -> Result<(), CheckpointError> {
    pipeline.load(&checkpoints.latest()?)
}

#[test]
fn every_file_that_is_cut_short_changed_or_gone_is_refused_by_name() {
    let folder = tempdir().unwrap();
    let (checkpoints, mut pipeline) = two(&folder);
    let latest = checkpoints.latest().unwrap();
    let intact = weights(&mut pipeline);
    let mut refused = 0;
    for path in files(latest.folder()) {
        let whole = std::fs::read(&path).unwrap();
        let lengths = [0, 1, 8, whole.len() / 2, whole.len() - 1];
        let cut_short = lengths.iter().map(|&length| Some(whole[..length].to_vec()));
        let longer = std::iter::once(Some([&whole[..], b" "].concat()));
        let stride = whole.len() / 40 + 1;
        let flipped = (0..whole.len()).step_by(stride).map(|at| {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (at % 8);
            Some(bytes)
        });
        // A manifest with a trailing space means the same; a tensor file does not.
        let longer = longer.filter(|_| path.extension().is_some_and(|e| e == "safetensors"));
        for bytes in cut_short.chain(longer).chain(flipped).chain([None]) {
            match &bytes {
                Some(bytes) => std::fs::write(&path, bytes).unwrap(),
                None => std::fs::remove_file(&path).unwrap(),
            }
            let error = load(&checkpoints, &mut pipeline).unwrap_err();
            let named = match (&error, bytes.is_some()) {
                (CheckpointError::Damaged { path, .. } | CheckpointError::Version { path, .. }, true) => path,
                (CheckpointError::Missing { path }, false) => path,
                (error, _) => panic!("{}: {error}", path.display()),
            };
            assert_eq!(named, &path);
            assert!(error.to_string().contains(&*path.display().to_string()), "{error}");
            assert_eq!(checkpoints.latest_intact().unwrap().progress().steps, 1);
            refused += 1;
        }
        std::fs::write(&path, whole).unwrap();
    }
    assert_eq!(weights(&mut pipeline), intact, "a refused checkpoint changed the weights");
    assert_eq!(checkpoints.latest_intact().unwrap().progress().steps, 2);
    load(&checkpoints, &mut pipeline).unwrap();
    println!("{refused} damaged checkpoints were refused");
}

#[test]
fn the_checkpoint_before_a_damaged_one_is_taken_up() {
    let folder = tempdir().unwrap();
    let (checkpoints, mut pipeline) = two(&folder);
    let second = pipeline.step(Text::new(SAMPLES).batch(), RATE).unwrap().loss;
    std::fs::remove_dir_all(checkpoints.latest().unwrap().folder()).unwrap();
    assert!(matches!(checkpoints.latest(), Err(CheckpointError::Missing { .. })));
    let mut other = CUT.pipeline();
    other.load(&checkpoints.latest_intact().unwrap()).unwrap();
    other.step(Text::new(SAMPLES).batch(), RATE).unwrap();
    assert_eq!(other.step(Text::new(SAMPLES).batch(), RATE).unwrap().loss, second);
}

#[test]
fn a_folder_without_checkpoints_says_so() {
    let folder = tempdir().unwrap();
    let error = Checkpoints::new(folder.path()).latest().unwrap_err();
    assert_eq!(error.to_string(), format!("there is no checkpoint in {}", folder.path().display()));
    assert!(matches!(Checkpoint::open(folder.path().join("step-00000001")), Err(CheckpointError::Missing { .. })));
}

#[test]
fn another_version_of_the_format_is_refused_by_its_number() {
    let folder = tempdir().unwrap();
    let (checkpoints, _) = two(&folder);
    let path = checkpoints.latest().unwrap().folder().join("manifest.json");
    let text = std::fs::read_to_string(&path).unwrap().replace("\"version\": 2", "\"version\": 7");
    std::fs::write(&path, text).unwrap();
    let error = checkpoints.latest().unwrap_err().to_string();
    assert!(error.contains("is of format version 7, but this library reads version 2"), "{error}");
}

#[test]
fn a_save_that_fails_leaves_the_pipeline_and_the_checkpoints_as_they_were() {
    let folder = tempdir().unwrap();
    let (checkpoints, mut pipeline) = two(&folder);
    // A file with the name of the folder.
    let blocked = folder.path().join("blocked");
    std::fs::write(&blocked, "").unwrap();
    let error = pipeline.save(&Checkpoints::new(&blocked), &()).unwrap_err();
    assert!(matches!(error, CheckpointError::Io { .. }), "{error}");
    assert!(error.to_string().contains("blocked"), "{error}");
    pipeline.step(Text::new(SAMPLES).batch(), RATE).unwrap();
    pipeline.save(&checkpoints, &()).unwrap();
    assert_eq!(checkpoints.latest().unwrap().progress().steps, 3);
}

#[test]
fn gathered_gradients_are_not_lost_silently() {
    let folder = tempdir().unwrap();
    let (checkpoints, mut pipeline) = two(&folder);
    pipeline.accumulate(Text::new(SAMPLES).batch()).unwrap();
    let error = pipeline.save(&checkpoints, &()).unwrap_err();
    assert!(matches!(error, CheckpointError::MidStep), "{error}");
    pipeline.step(Text::new(SAMPLES).batch(), RATE).unwrap();
    pipeline.save(&checkpoints, &()).unwrap();
}
