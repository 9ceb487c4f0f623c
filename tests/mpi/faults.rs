//! When a rank is lost, every other one names it in time, and nothing is left behind.

use crate::mpirun::{Run, mpirun};
use pipeline_tests::at_once::for_each_at_once;
use pipeline_tests::drawn::{Drawn, faults};
use pipeline_tests::faulty_link::Fault;
use pipeline_tests::leaving::Leaving;

/// The errors of the ranks that survive: `(rank, seconds since the last good step, message)`.
fn reported(out: &str) -> Vec<(usize, f64, String)> {
    let line = |line: &str| {
        let (rank, rest) = line.strip_prefix("rank ")?.split_once(" after ")?;
        let (seconds, message) = rest.split_once(" s: ")?;
        Some((rank.parse().ok()?, seconds.parse().ok()?, message.to_owned()))
    };
    out.lines().filter_map(line).collect()
}

/// The test program's timeout, and some time for a busy machine.
const IN_TIME: f64 = 4.0 + 6.0;

/// Asserts that every other rank's error contains these words, where `what` happened to the failing rank.
fn assert_told(what: &str, run: &Run, ranks: usize, failing: usize, words: &[&str]) {
    let reported = reported(&run.out);
    assert!(run.code.is_some(), "{what}: mpirun did not end: {run:?}");
    for rank in (0..ranks).filter(|&rank| rank != failing) {
        let Some((_, seconds, message)) = reported.iter().find(|(r, ..)| *r == rank) else {
            panic!("{what}: rank {rank} said nothing: {}{}", run.out, run.err)
        };
        assert!(*seconds < IN_TIME, "{what}: rank {rank} took {seconds} s: {message}");
        for word in words {
            assert!(message.contains(word), "{what}: rank {rank}: {message} does not contain {word}");
        }
    }
    assert!(run.left.is_empty(), "{what}: left behind: {:?}", run.left);
}

fn strike(fault: Fault, ranks: usize, failing: usize, at: usize) -> Run {
    let (name, failing, at) = (format!("{fault:?}"), failing.to_string(), at.to_string());
    // Without this flag, `mpirun` kills all ranks when one is killed: see the last test. With it, `mpirun` exits
    // with code 0 whatever the ranks return.
    let flags: &[&str] = if fault == Fault::Kill { &["--enable-recovery"] } else { &[] };
    let run = mpirun(ranks, flags, &["fault", &name, &failing, &at]);
    // A rank that leaves without a panic has not failed.
    let ends_well = matches!(fault, Fault::Kill | Fault::Leave(_));
    assert!(ends_well || run.code != Some(0), "{run:?}");
    run
}

const GONE: &str = "does not answer (killed, stopped";

/// What errors say about the failing rank, besides its number.
fn says(fault: Fault, failing: usize) -> Vec<String> {
    let named = format!("rank {failing}");
    match fault {
        Fault::Kill | Fault::Stop => vec![named, GONE.to_owned()],
        Fault::Panic => vec![named, "panicked".to_owned()],
        Fault::OtherPlan => vec![format!("rank {failing} differs from the others in the plan: it has GPipe #")],
        Fault::Hang | Fault::Lose | Fault::Late => vec![named],
        Fault::Leave(leaving) => vec![named, leaving.says().to_owned()],
        // Bytes that are no message, or an unexpected message.
        Fault::Corrupt | Fault::Stray | Fault::Oversized => vec![format!("rank {failing}"), "from".to_owned()],
    }
}

/// Asserts that in each of these runs, every other rank names the failing one. The runs mostly wait, so several run
/// at a time.
fn assert_named(faults: &[Drawn]) {
    for_each_at_once(3, faults, |drawn| {
        let &Drawn { fault, ranks, failing, at } = drawn;
        let (run, words) = (strike(fault, ranks, failing, at), says(fault, failing));
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        assert_told(&drawn.to_string(), &run, ranks, failing, &words);
    });
}

fn drawn(fault: Fault, (ranks, failing, at): (usize, usize, usize)) -> Drawn {
    Drawn { fault, ranks, failing, at }
}

#[test]
fn a_rank_that_is_killed_or_stopped_is_named_by_every_other_rank() {
    // In the handshake, in a step, and in the gathers between steps.
    let killed = [(3, 1, 1), (2, 0, 14), (4, 3, 33)].map(|place| drawn(Fault::Kill, place));
    let stopped = [(2, 0, 9), (4, 1, 41)].map(|place| drawn(Fault::Stop, place));
    assert_named(&[&killed[..], &stopped].concat());
}

#[test]
fn whatever_else_happens_to_a_rank_it_is_named_by_every_other() {
    assert_named(&[
        drawn(Fault::Hang, (2, 1, 12)),
        drawn(Fault::Lose, (3, 0, 19)),
        drawn(Fault::Panic, (3, 2, 30)),
        drawn(Fault::Late, (3, 2, 1)),
        drawn(Fault::OtherPlan, (4, 2, 1)),
    ]);
}

#[test]
fn a_header_that_was_changed_on_its_way_is_never_another_message() {
    // The first messages of a stream and repeated ones, each with a different field changed.
    assert_named(&[(2, 0, 6), (2, 1, 21), (3, 1, 34), (3, 2, 47)].map(|place| drawn(Fault::Corrupt, place)));
}

#[test]
fn a_rank_that_leaves_is_named_at_once_with_what_it_said() {
    let cases = [(3, 1, Leaving::Drop), (2, 0, Leaving::Say), (3, 2, Leaving::Panic)];
    for_each_at_once(3, &cases, |&(ranks, leaves, leaving)| {
        let run = mpirun(ranks, &[], &["leave", &format!("{leaving:?}"), &leaves.to_string()]);
        assert_told(
            &format!("{leaving:?} of {leaves}"),
            &run,
            ranks,
            leaves,
            &[&format!("rank {leaves}"), leaving.says()],
        );
        // Its timeout is 40 s.
        assert!(reported(&run.out).iter().all(|(_, seconds, _)| *seconds < 10.0), "{run:?}");
    });
}

/// Most of these runs wait for the timeout.
#[test]
fn faults_at_random_points_are_named_over_mpi() {
    assert_named(&faults(&Fault::ALL, 4));
}

#[test]
fn without_recovery_mpirun_ends_the_job_and_names_the_killed_rank() {
    let run = mpirun(3, &[], &["fault", "Kill", "1", "20"]);
    assert!(run.code.is_some_and(|code| code != 0), "{run:?}");
    assert!(run.err.contains("rank 1") && run.err.contains("signal 9"), "{}", run.err);
    assert!(run.left.is_empty(), "left behind: {:?}", run.left);
}
