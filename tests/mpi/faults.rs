//! A rank is lost: every other one says which, in time, and nothing is left behind.

use crate::mpirun::{Run, mpirun};

/// What ranks say that live on: `(rank, seconds since the last good step, message)`.
fn told(out: &str) -> Vec<(usize, f64, String)> {
    let line = |line: &str| {
        let (rank, rest) = line.strip_prefix("rank ")?.split_once(" after ")?;
        let (seconds, message) = rest.split_once(" s: ")?;
        Some((rank.parse().ok()?, seconds.parse().ok()?, message.to_owned()))
    };
    out.lines().filter_map(line).collect()
}

/// The deadline of the test program, and some time for a machine that does other things as well.
const IN_TIME: f64 = 4.0 + 6.0;

/// The failing rank, and words that every other rank must say.
fn assert_told(run: &Run, ranks: usize, failing: usize, words: &[&str]) {
    let told = told(&run.out);
    for rank in (0..ranks).filter(|&rank| rank != failing) {
        let Some((_, seconds, message)) = told.iter().find(|(r, ..)| *r == rank) else {
            panic!("rank {rank} said nothing: {}{}", run.out, run.err)
        };
        assert!(*seconds < IN_TIME, "rank {rank} took {seconds} s: {message}");
        for word in words {
            assert!(message.contains(word), "rank {rank}: {message} does not say {word}");
        }
    }
    assert!(run.left.is_empty(), "left behind: {:?}", run.left);
    assert!(run.code.is_some(), "mpirun did not end: {run:?}");
}

fn strike(fault: &str, ranks: usize, failing: usize, at: usize) -> Run {
    let (failing, at) = (failing.to_string(), at.to_string());
    // Without it, `mpirun` itself kills all ranks when one is killed: see the last test. (With it, `mpirun` ends with
    // code 0 whatever the ranks end with.)
    let flags: &[&str] = if fault == "kill" { &["--enable-recovery"] } else { &[] };
    let run = mpirun(ranks, flags, &["fault", fault, &failing, &at]);
    assert!(fault == "kill" || run.code != Some(0), "{run:?}");
    run
}

#[test]
fn a_killed_process_is_named_by_every_other_rank() {
    // In the handshake, in a step, in the gathers between.
    for (ranks, failing, at) in [(2, 1, 1), (2, 0, 14), (3, 1, 25), (4, 3, 33), (4, 0, 60)] {
        let run = strike("kill", ranks, failing, at);
        assert_told(&run, ranks, failing, &[&format!("rank {failing}"), "does not answer (killed, stopped"]);
    }
}

#[test]
fn a_stopped_process_is_named_and_ended() {
    for (ranks, failing, at) in [(2, 0, 9), (3, 2, 17), (4, 1, 41)] {
        let run = strike("stop", ranks, failing, at);
        assert_told(&run, ranks, failing, &[&format!("rank {failing}"), "does not answer (killed, stopped"]);
    }
}

#[test]
fn a_rank_that_hangs_or_panics_or_loses_a_message_is_named() {
    for (fault, words) in [("hang", ""), ("lose", ""), ("panic", "a broken link")] {
        for (ranks, failing, at) in [(2, 1, 12), (3, 0, 19)] {
            let run = strike(fault, ranks, failing, at);
            assert_told(&run, ranks, failing, &[&format!("rank {failing}"), words]);
        }
    }
}

#[test]
fn a_rank_that_comes_late_is_named() {
    for (ranks, failing) in [(2, 0), (3, 2)] {
        let run = mpirun(ranks, &[], &["late", &failing.to_string()]);
        assert_told(&run, ranks, failing, &[&format!("rank {failing}")]);
    }
}

/// As many as `FAULTS` says, else a few: each takes the deadline.
#[test]
fn faults_at_random_points_are_named() {
    let count = std::env::var("FAULTS").ok().and_then(|count| count.parse().ok()).unwrap_or(4);
    let mut state = 0x5eed_u64;
    let mut below = |limit: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % limit
    };
    for number in 0..count {
        let fault = ["kill", "stop", "hang", "lose", "panic"][below(5) as usize];
        let ranks = 2 + below(3) as usize;
        let (failing, at) = (below(ranks as u64) as usize, 1 + below(60) as usize);
        println!("fault {number}: {fault} on rank {failing} of {ranks}, at its use {at} of the link");
        let run = strike(fault, ranks, failing, at);
        assert_told(&run, ranks, failing, &[&format!("rank {failing}")]);
    }
}

#[test]
fn without_recovery_mpirun_ends_the_job_and_names_the_killed_rank() {
    let run = mpirun(3, &[], &["fault", "kill", "1", "20"]);
    assert!(run.code.is_some_and(|code| code != 0), "{run:?}");
    assert!(run.err.contains("rank 1") && run.err.contains("signal 9"), "{}", run.err);
    assert!(run.left.is_empty(), "left behind: {:?}", run.left);
}
