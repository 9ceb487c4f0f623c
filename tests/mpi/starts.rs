//! Starting and ending finish in time, whether one rank opens no link, opens it late, or has ended.

use crate::mpirun::{Run, mpirun, mpirun_once};
use pipeline_tests::at_once::for_each_at_once;
use std::time::{Duration, Instant};

/// What a rank printed after these words.
fn said<'a>(run: &'a Run, words: &str) -> &'a str {
    let found = run.out.lines().find_map(|line| line.strip_prefix(words));
    found.unwrap_or_else(|| panic!("nobody said \"{words}\": {run:?}"))
}

/// The seconds at the start of a text.
fn seconds(text: &str) -> f64 {
    text.split_once(" s").and_then(|(seconds, _)| seconds.parse().ok()).unwrap_or_else(|| panic!("no seconds: {text}"))
}

#[test]
fn a_rank_that_opens_no_link_is_named_in_time_and_the_others_end() {
    for ends in ["drop", "end_job"] {
        let began = Instant::now();
        let run = mpirun(3, &[], &["starts", "absent", ends]);
        assert!(run.code.is_some_and(|code| code != 0), "{run:?}");
        for rank in [0, 2] {
            let error = said(&run, &format!("rank {rank} after "));
            assert!(error.contains("rank 1") && seconds(error) < 6.0, "{error}");
            if ends == "drop" {
                let ended = said(&run, &format!("rank {rank} ended after "));
                assert!(seconds(ended) < 10.0, "{ended}");
            }
        }
        // The absent rank is still asleep.
        assert!(began.elapsed() < Duration::from_secs(40), "{:?}: {run:?}", began.elapsed());
    }
}

#[test]
fn ranks_that_end_the_job_while_another_one_ends_in_order_harm_no_mpirun() {
    for_each_at_once(4, &[3; 12], |&ranks| {
        let run = mpirun_once(ranks, &[], &["starts", "nobody", "end_job"]);
        assert!(run.code.is_some_and(|code| code != 0) && run.left.is_empty(), "{run:?}");
    });
}

#[test]
fn a_rank_that_comes_too_late_for_a_link_learns_that_the_others_gave_up() {
    let run = mpirun(2, &[], &["starts", "late", "drop"]);
    let error = said(&run, "rank 1 after ");
    assert!(error.contains("rank 0"), "{error}");
    assert!(seconds(error) < 6.0, "{error}");
}

#[test]
fn a_rank_that_ends_before_any_link_is_named_at_once_and_mpi_ends_in_order_on_all() {
    for ranks in [2, 3] {
        let run = mpirun(ranks, &[], &["starts", "leaves", "drop"]);
        assert_eq!(run.code, Some(0), "{run:?}");
        assert!(run.left.is_empty(), "{run:?}");
        for rank in (0..ranks).filter(|&rank| rank != 1) {
            let error = said(&run, &format!("rank {rank} after "));
            // The first rank that learns of it tells the others.
            assert!(error.contains("rank 1") && error.contains("has left the job"), "{error}");
            // The timeout is 30 s.
            assert!(seconds(error) < 8.0, "{error}");
            assert!(seconds(said(&run, &format!("rank {rank} ended after "))) < 8.0, "{run:?}");
        }
    }
}
