//! Tests over MPI. Each runs `mpirun` on the program in `tests/ranks`.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests fail by panicking and print what they covered")]

#[allow(dead_code, reason = "the program that runs as a rank uses all of it")]
#[path = "../runtime/cases.rs"]
mod cases;
mod checkpoints;
mod faults;
mod machines;
mod mpirun;
#[allow(dead_code, reason = "the program that runs as a rank uses all of it")]
#[path = "../ranks/odd.rs"]
mod odd;
mod restart;
mod slurm;
mod starts;
mod training;

use mpirun::{Run, mpirun};
use odd::FIELDS;
use tempfile::TempDir;

/// Runs a test of the program that must pass on every rank and leave nothing behind; returns its standard output.
fn passes(ranks: usize, test: &str) -> String {
    passes_with(ranks, &[test])
}

fn passes_with(ranks: usize, test: &[&str]) -> String {
    let Run { code, out, err, left, .. } = mpirun(ranks, &[], test);
    assert_eq!(code, Some(0), "{test:?} on {ranks} ranks: {out}{err}");
    assert!(left.is_empty(), "{test:?} on {ranks} ranks left {left:?}");
    out
}

/// A folder, as an argument.
fn text(folder: &TempDir) -> &str {
    folder.path().to_str().unwrap()
}

#[test]
fn mpi_is_a_link() {
    for ranks in [2, 3] {
        let out = passes(ranks, "conformance");
        let passed = out.lines().filter(|line| line.starts_with("passed: ")).count();
        assert_eq!(passed, burn_pipeline::link::conformance::CASES.len(), "{out}");
    }
}

#[test]
fn groups_of_ranks_have_links_of_their_own() {
    for ranks in [3, 4] {
        passes(ranks, "groups");
    }
}

#[test]
fn a_failed_call_closes_no_link_and_its_large_messages_are_dropped() {
    for ranks in [2, 3] {
        passes(ranks, "recovers");
    }
}

#[test]
fn mpi_is_initialised_once() {
    passes(2, "again");
}

#[test]
fn processes_compute_what_threads_and_the_plain_loop_compute() {
    for ranks in [2, 4] {
        println!("{ranks} processes: {}", passes(ranks, "parity").trim());
    }
}

#[test]
fn replicas_of_processes_compute_what_threads_and_the_plain_loop_compute() {
    passes(4, "replicas");
}

#[test]
fn sharded_processes_compute_what_threads_and_the_plain_loop_compute() {
    passes(4, "shards");
}

#[test]
fn rates_by_group_are_those_of_the_plain_loop_whichever_process_holds_the_group() {
    for ranks in [2, 3] {
        passes(ranks, "rates");
    }
}

#[test]
fn processes_under_burns_training_loop_have_the_metrics_and_weights_of_one_device() {
    for ranks in [2, 3] {
        passes(ranks, "learner");
    }
}

#[test]
fn plain_numbers_and_strings_are_those_of_their_microbatch_in_every_process() {
    for ranks in [2, 4] {
        passes(ranks, "plain");
    }
}

#[test]
fn a_pipeline_over_mpi_is_connected_before_its_first_step() {
    let ranks = 3;
    let connections = |flags: &[&str]| -> Vec<usize> {
        let Run { code, out, err, .. } = mpirun(ranks, flags, &["warm"]);
        assert_eq!(code, Some(0), "{out}{err}");
        let counts: Vec<usize> = said(&out, "connections: ").iter().map(|count| count.parse().unwrap()).collect();
        assert_eq!(counts.len(), ranks, "{out}");
        counts
    };
    // The connections that exist in any case belong to `mpirun`. MPI connects two ranks at their first message.
    let others = connections(&["--mca", "pml", "ob1", "--mca", "btl", "self,vader"]);
    let all = connections(&["--mca", "pml", "ob1", "--mca", "btl", "self,tcp"]);
    let (least, most) = (all.iter().min().unwrap(), others.iter().max().unwrap());
    assert!(least - most >= ranks - 1, "{all:?} connections over TCP, and {others:?} in shared memory");
}

#[test]
fn shared_parameters_are_summed_over_processes_as_over_threads() {
    for ranks in [2, 4] {
        passes(ranks, "shared");
    }
}

#[test]
fn ranks_of_another_job_are_named_before_anything_is_built() {
    for ranks in [2, 3] {
        passes(ranks, "strangers");
    }
}

#[test]
fn the_rank_that_was_started_otherwise_is_named_with_what_it_has_by_every_rank() {
    // A process chooses its data types before anything else.
    let (types, others): (Vec<_>, Vec<_>) = FIELDS.into_iter().partition(|(field, _)| *field == "types");
    for (ranks, fields) in [2, 3].into_iter().flat_map(|ranks| [(ranks, &types), (ranks, &others)]) {
        let out = passes_with(ranks, &["odd", &fields.iter().map(|(field, _)| *field).collect::<Vec<_>>().join(",")]);
        for (field, says) in fields {
            let reports: Vec<&str> = said(&out, &format!("{field} reported: "));
            let named = format!("rank {} differs from the others in {says}", ranks - 1);
            assert!(reports.len() == ranks && reports.iter().all(|line| line.contains(&named)), "{named}: {out}");
        }
    }
}

#[test]
fn calls_that_differ_are_refused_on_every_rank() {
    for ranks in [2, 3] {
        passes(ranks, "calls");
    }
}

#[test]
fn outputs_modules_and_links_are_read_as_on_threads() {
    for ranks in [2, 3] {
        passes(ranks, "reads");
    }
}

#[test]
fn messages_that_repeat_find_their_receives_posted_and_others_arrive_all_the_same() {
    for ranks in [2, 3] {
        passes(ranks, "receives");
    }
}

#[test]
fn stages_over_groups_of_processes_have_the_bits_of_threads() {
    for ranks in [4, 8] {
        passes(ranks, "grids");
    }
}

#[test]
fn a_vocabulary_over_processes_has_the_bits_of_threads() {
    for ranks in [2, 5] {
        passes(ranks, "vocabulary");
    }
}

#[test]
fn experts_over_groups_of_processes_have_the_gradients_of_one_device() {
    for ranks in [4, 8] {
        passes(ranks, "expert_parallel");
    }
}

#[test]
fn experts_over_replicas_of_processes_have_the_gradients_of_one_device() {
    for ranks in [4, 8] {
        passes(ranks, "over-replicas");
    }
}

#[test]
fn every_process_knows_the_load_of_all_experts_and_what_was_dropped() {
    for ranks in [2, 4] {
        passes(ranks, "experts");
    }
}

/// What every rank printed after a word.
fn said<'a>(out: &'a str, word: &str) -> Vec<&'a str> {
    out.lines().filter_map(|line| line.strip_prefix(word)).collect()
}

#[test]
fn processes_that_measured_otherwise_take_up_one_plan_and_their_numbers_stay() {
    let ranks = 2;
    let out = passes(ranks, "agree");
    let (together, alone) = (said(&out, "together: "), said(&out, "alone: "));
    assert_eq!((together.len(), alone.len()), (ranks, ranks), "{out}");
    assert!(together.iter().all(|plan| *plan == together[0]), "{out}");
    // Alone, the ranks would have chosen different plans.
    assert!(alone.iter().any(|plan| *plan != alone[0]), "{out}");
}

#[test]
fn processes_take_a_choice_that_takes_longer_back_together() {
    let out = passes(2, "go-back");
    let trials = said(&out, "together: ");
    assert!(trials.len() == 2 && trials[0] == trials[1], "{out}");
}
