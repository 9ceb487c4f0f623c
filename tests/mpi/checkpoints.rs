//! Ranks in processes save together and resume from each other's checkpoints. A rank that is lost during a save
//! damages no earlier checkpoint.

use crate::mpirun::mpirun;
use crate::{passes_with, text};
use burn_pipeline::train::{CheckpointError, Checkpoints};
use pipeline_tests::random::Random;
use tempfile::tempdir;

#[test]
fn other_ranks_and_schedules_go_on_bit_for_bit_from_what_processes_saved() {
    for (ranks, schedule, takers) in [
        (4, "1F1B", &[(2, "ZBVZeroBubble"), (3, "GPipe"), (1, "1F1B")][..]),
        (2, "ZBVZeroBubble", &[(4, "Interleaved1F1B")]),
        (2, "DualPipe", &[(3, "ZBH1")]),
    ] {
        let folder = tempdir().unwrap();
        passes_with(ranks, &["save", schedule, text(&folder)]);
        Checkpoints::new(folder.path()).latest().unwrap().verify().unwrap();
        for &(ranks, schedule) in takers {
            print!("{}", passes_with(ranks, &["resume", schedule, text(&folder)]));
        }
    }
}

#[test]
fn processes_export_the_whole_model_as_threads_do() {
    for (ranks, schedule) in [(2, "ZBVZeroBubble"), (4, "1F1B")] {
        passes_with(ranks, &["export", schedule, text(&tempdir().unwrap())]);
    }
}

#[test]
fn processes_go_on_from_what_threads_saved() {
    let folder = tempdir().unwrap();
    passes_with(3, &["save-threads", "1F1B", text(&folder)]);
    passes_with(2, &["resume", "1F1B", text(&folder)]);
}

#[test]
fn what_one_rank_cannot_save_or_load_is_refused_by_all() {
    for ranks in [2, 3] {
        passes_with(ranks, &["refusals", text(&tempdir().unwrap())]);
    }
}

#[test]
fn a_rank_that_is_lost_amid_a_save_leaves_the_checkpoints_that_were_there() {
    let (folder, mut random) = (tempdir().unwrap(), Random::of_now());
    let checkpoints = Checkpoints::new(folder.path());
    let (mut reached, mut partial) = (0, 0);
    for strike in 0..6 {
        let (ranks, fault) = (2 + random.below(3), ["Kill", "Panic"][strike % 2]);
        let place = [random.below(ranks), 1 + random.below(3), 1 + random.below(40)];
        println!("{fault} on rank {} of {ranks}, in its save {}, place {}", place[0], place[1], place[2]);
        let [failing, save, within] = place.map(|number| number.to_string());
        let run = mpirun(ranks as usize, &[], &["until-struck", text(&folder), fault, &failing, &save, &within]);
        assert!(run.code.is_some_and(|code| code != 0) && run.left.is_empty(), "{run:?}");
        if fault == "Panic" {
            assert!(run.out.contains("the disk is gone") && run.out.contains(&format!("rank {failing}")), "{run:?}");
        }
        let said = run.out.lines().filter_map(|line| line.strip_prefix("saved ")?.parse().ok()).max();
        let left = std::fs::read_dir(folder.path()).unwrap().flatten();
        partial += left.filter(|entry| entry.file_name().to_string_lossy().ends_with(".partial")).count();
        match checkpoints.latest() {
            Ok(checkpoint) => {
                checkpoint.verify().unwrap();
                let steps = checkpoint.progress().steps;
                assert!(steps >= said.unwrap_or(0).max(reached), "{said:?} was saved, {steps} is left");
                reached = steps;
            }
            Err(CheckpointError::None { .. }) if reached == 0 && said.is_none() => {}
            Err(error) => panic!("{error}"),
        }
    }
    println!("{reached} steps were reached; {partial} saves left partial files");
    // The folder holds more than four steps by now: start a new one, and stop once.
    let folder = tempdir().unwrap();
    mpirun(3, &[], &["until-struck", text(&folder), "Kill", "1", "3", "5"]);
    assert_eq!(Checkpoints::new(folder.path()).latest().unwrap().progress().steps, 2);
    print!("{}", passes_with(2, &["resume", "1F1B", text(&folder)]));
}
