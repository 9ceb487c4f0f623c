//! Which checkpoints are kept, how they are named, and which are removed.

use super::{Cut, RATE, SAMPLES};
use crate::cases::{Case, Text};
use burn_pipeline::train::{Checkpoint, CheckpointError, Checkpoints};
use tempfile::tempdir;

const CUT: Cut = Cut { schedule: "GPipe", ranks: 2, chunks: 1 };

fn names(checkpoints: &Checkpoints) -> Vec<String> {
    let name = |path: &std::path::PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
    checkpoints.all().unwrap().iter().map(name).collect()
}

#[test]
fn as_many_are_kept_as_was_asked_for_and_the_one_just_saved_always() {
    let folder = tempdir().unwrap();
    let (checkpoints, mut pipeline) = (Checkpoints::new(folder.path()).keep(2), CUT.pipeline());
    for _ in 0..4 {
        pipeline.step(Text::new(SAMPLES).batch(), RATE).unwrap();
        pipeline.save(&checkpoints, &()).unwrap();
    }
    assert_eq!(names(&checkpoints), ["step-00000003", "step-00000004"]);
    // After going back to an earlier step, a repeated step gets a new name and is the latest.
    pipeline.load(&Checkpoint::open(folder.path().join("step-00000003")).unwrap()).unwrap();
    let saved = pipeline.save(&checkpoints, &()).unwrap();
    assert_eq!(saved, folder.path().join("step-00000003-2"));
    assert_eq!(checkpoints.latest().unwrap().folder(), saved);
    assert_eq!(names(&checkpoints), ["step-00000003", "step-00000003-2"], "the job went back from step 4");
}

/// A pipeline that has trained to these steps and saved at each.
fn saved_at(checkpoints: &Checkpoints, steps: &[u64]) -> burn_pipeline::train::Pipeline {
    let mut pipeline = CUT.pipeline();
    steps.iter().for_each(|&step| save_at(&mut pipeline, checkpoints, step));
    pipeline
}

fn save_at(pipeline: &mut burn_pipeline::train::Pipeline, checkpoints: &Checkpoints, step: u64) {
    while pipeline.progress().steps < step {
        pipeline.step(Text::new(SAMPLES).batch(), RATE).unwrap();
    }
    pipeline.save(checkpoints, &()).unwrap();
}

#[test]
fn after_damage_a_job_that_went_back_takes_up_what_it_went_back_to() {
    let folder = tempdir().unwrap();
    let checkpoints = Checkpoints::new(folder.path());
    let mut pipeline = saved_at(&checkpoints, &[1, 3]);
    pipeline.load(&Checkpoint::open(folder.path().join("step-00000001")).unwrap()).unwrap();
    save_at(&mut pipeline, &checkpoints, 2);
    std::fs::write(folder.path().join("step-00000002/stage-000.safetensors"), "damaged").unwrap();
    assert_eq!(checkpoints.latest_intact().unwrap().progress().steps, 1, "step 3 had diverged");
}

#[test]
fn a_new_run_into_the_folder_of_an_old_one_keeps_its_own() {
    let folder = tempdir().unwrap();
    let checkpoints = Checkpoints::new(folder.path()).keep(2);
    drop(saved_at(&checkpoints, &[5, 6]));
    drop(saved_at(&checkpoints, &[1, 2]));
    assert_eq!(names(&checkpoints), ["step-00000001", "step-00000002"]);
    assert_eq!(checkpoints.latest().unwrap().progress().steps, 2);
    assert_eq!(checkpoints.latest_intact().unwrap().progress().steps, 2);
}

#[test]
fn another_process_that_saves_into_the_folder_is_refused_until_the_first_is_gone() {
    let folder = tempdir().unwrap();
    let (checkpoints, mut pipeline) = (Checkpoints::new(folder.path()), CUT.pipeline());
    // A lock belongs to the open file, not to the process: a second open file acts like another process.
    let other = std::fs::File::create(folder.path().join("LOCK")).unwrap();
    other.lock().unwrap();
    let error = pipeline.save(&checkpoints, &()).unwrap_err();
    assert!(matches!(error, CheckpointError::InUse { .. }), "{error}");
    assert!(error.to_string().contains("give each job a folder of its own"), "{error}");
    drop(other);
    pipeline.save(&checkpoints, &()).unwrap();
    let other = || std::fs::File::open(folder.path().join("LOCK")).unwrap();
    other().try_lock().unwrap_err();
    drop(pipeline);
    other().try_lock().unwrap();
}

#[test]
fn another_pipeline_of_the_process_shares_a_folder_only_to_go_on_from_it() {
    let folder = tempdir().unwrap();
    let checkpoints = Checkpoints::new(folder.path()).keep(1);
    let first = saved_at(&checkpoints, &[1]);
    let mut second = CUT.pipeline();
    let error = second.save(&checkpoints, &()).unwrap_err();
    assert!(matches!(error, CheckpointError::InUse { .. }), "{error}");
    assert_eq!(names(&checkpoints), ["step-00000001"]);
    second.load(&checkpoints.latest().unwrap()).unwrap();
    save_at(&mut second, &checkpoints, 2);
    assert_eq!(names(&checkpoints), ["step-00000002"]);
    drop(first);
}

#[test]
fn a_checkpoint_of_one_folder_opens_no_folder_of_a_third_pipeline() {
    let folder = tempdir().unwrap();
    let [ours, best, theirs] = ["ours", "best", "theirs"].map(|name| Checkpoints::new(folder.path().join(name)));
    let theirs = theirs.keep(1);
    let mut first = saved_at(&ours, &[1]);
    first.save(&best, &()).unwrap();
    let third = saved_at(&theirs, &[1]);
    let mut second = CUT.pipeline();
    second.load(&ours.latest().unwrap()).unwrap();
    let error = second.save(&theirs, &()).unwrap_err();
    assert!(matches!(error, CheckpointError::InUse { .. }), "{error}");
    assert_eq!(names(&theirs), ["step-00000001"]);
    // All folders of the pipeline that it goes on from are open to it.
    for checkpoints in [&ours, &best] {
        save_at(&mut second, checkpoints, 2);
        assert_eq!(names(checkpoints), ["step-00000001", "step-00000002"]);
    }
    // And so they stay after that one is gone, while the third keeps its own.
    drop(first);
    save_at(&mut second, &ours, 3);
    second.save(&theirs, &()).unwrap_err();
    drop(third);
    second.save(&theirs, &()).unwrap();
}

#[cfg(unix)]
#[test]
fn a_checkpoint_that_is_opened_by_a_link_is_one_of_its_folder() {
    let folder = tempdir().unwrap();
    let root = folder.path().join("saved");
    let checkpoints = Checkpoints::new(&root);
    let mut pipeline = saved_at(&checkpoints, &[1, 3]);
    let link = folder.path().join("best");
    std::os::unix::fs::symlink(root.join("step-00000001"), &link).unwrap();
    let linked = Checkpoint::open(&link).unwrap();
    let error = pipeline.save(&checkpoints.clone().over(&linked), &()).unwrap_err();
    assert!(matches!(error, CheckpointError::Base { .. }), "{error}");
    pipeline.load(&linked).unwrap();
    save_at(&mut pipeline, &checkpoints.clone().keep(2), 2);
    assert_eq!(names(&checkpoints), ["step-00000001", "step-00000002"]);
}

#[test]
fn what_a_killed_process_left_half_written_is_no_checkpoint_and_goes_with_the_next_save() {
    let folder = tempdir().unwrap();
    let (checkpoints, mut pipeline) = (Checkpoints::new(folder.path()), CUT.pipeline());
    std::fs::create_dir_all(folder.path().join("step-00000009.partial")).unwrap();
    std::fs::write(folder.path().join("step-00000009.partial/stage-000.safetensors"), "half").unwrap();
    std::fs::write(folder.path().join("LATEST.partial"), "step-0").unwrap();
    // Files of the user's with similar endings are kept.
    for foreign in ["corpus.partial", "step-final.partial", "step-9.partial"] {
        std::fs::write(folder.path().join(foreign), "a download").unwrap();
    }
    assert!(names(&checkpoints).is_empty());
    pipeline.save(&checkpoints, &()).unwrap();
    let mut left: Vec<String> = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    left.sort();
    assert_eq!(left, ["LATEST", "LOCK", "corpus.partial", "step-00000000", "step-9.partial", "step-final.partial"]);
}

#[test]
fn a_complete_first_checkpoint_is_found_though_nothing_names_it_yet() {
    let folder = tempdir().unwrap();
    let (checkpoints, mut pipeline) = (Checkpoints::new(folder.path()), CUT.pipeline());
    let saved = pipeline.save(&checkpoints, &()).unwrap();
    std::fs::remove_file(folder.path().join("LATEST")).unwrap();
    assert_eq!(checkpoints.latest().unwrap().folder(), saved);
}
