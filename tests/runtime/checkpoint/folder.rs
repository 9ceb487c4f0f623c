//! What is kept, what is named, and what is removed.

use super::{Cut, Folder, RATE, SAMPLES};
use crate::cases::{Case, Text};
use burn_pipeline::train::{Checkpoint, Checkpoints};

const CUT: Cut = Cut { family: "GPipe", ranks: 2, chunks: 1 };

fn names(checkpoints: &Checkpoints) -> Vec<String> {
    let name = |path: &std::path::PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
    checkpoints.all().unwrap().iter().map(name).collect()
}

#[test]
fn as_many_are_kept_as_was_asked_for_and_the_one_just_saved_always() {
    let folder = Folder::new("folder-keep");
    let (checkpoints, mut pipeline) = (Checkpoints::new(&*folder).keep(2), CUT.pipeline());
    for _ in 0..4 {
        pipeline.step(Text::new(SAMPLES).batch(), RATE).unwrap();
        pipeline.save(&checkpoints, &()).unwrap();
    }
    assert_eq!(names(&checkpoints), ["step-00000003", "step-00000004"]);
    // Back to an earlier step: what comes by a step again gets a name of its own, and is the latest.
    pipeline.load(&Checkpoint::open(folder.join("step-00000003")).unwrap()).unwrap();
    let saved = pipeline.save(&checkpoints, &()).unwrap();
    assert_eq!(saved, folder.join("step-00000003-2"));
    assert_eq!(checkpoints.latest().unwrap().folder(), saved);
    assert_eq!(names(&checkpoints), ["step-00000003-2", "step-00000004"]);
}

#[test]
fn what_a_killed_process_left_half_written_is_no_checkpoint_and_goes_with_the_next_save() {
    let folder = Folder::new("folder-partial");
    let (checkpoints, mut pipeline) = (Checkpoints::new(&*folder), CUT.pipeline());
    std::fs::create_dir_all(folder.join("step-00000009.partial")).unwrap();
    std::fs::write(folder.join("step-00000009.partial/stage-000.safetensors"), "half").unwrap();
    std::fs::write(folder.join("LATEST.partial"), "step-0").unwrap();
    // Files of the user's end alike, and stay.
    for foreign in ["corpus.partial", "step-final.partial", "step-9.partial"] {
        std::fs::write(folder.join(foreign), "a download").unwrap();
    }
    assert!(names(&checkpoints).is_empty());
    pipeline.save(&checkpoints, &()).unwrap();
    let mut left: Vec<String> = std::fs::read_dir(&*folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    left.sort();
    assert_eq!(left, ["LATEST", "corpus.partial", "step-00000000", "step-9.partial", "step-final.partial"]);
}

#[test]
fn a_complete_first_checkpoint_is_found_though_nothing_names_it_yet() {
    let folder = Folder::new("folder-unnamed");
    let (checkpoints, mut pipeline) = (Checkpoints::new(&*folder), CUT.pipeline());
    let saved = pipeline.save(&checkpoints, &()).unwrap();
    std::fs::remove_file(folder.join("LATEST")).unwrap();
    assert_eq!(checkpoints.latest().unwrap().folder(), saved);
}
