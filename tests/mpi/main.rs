//! Tests over MPI: each runs `mpirun` on the program in `tests/ranks`.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod mpirun;

use mpirun::{Run, mpirun};

#[test]
fn mpi_is_a_link() {
    for ranks in [2, 3] {
        let Run { code, out, err } = mpirun(ranks, &[], &["conformance"]);
        assert_eq!(code, Some(0), "{ranks} ranks: {out}{err}");
        let passed = out.lines().filter(|line| line.starts_with("passed: ")).count();
        assert_eq!(passed, pipeline_tests::conformance::CASES.len(), "{out}");
    }
}

#[test]
fn groups_of_ranks_have_links_of_their_own() {
    for ranks in [3, 4] {
        let Run { code, out, err } = mpirun(ranks, &[], &["groups"]);
        assert_eq!(code, Some(0), "{out}{err}");
    }
}

#[test]
fn mpi_is_initialised_once() {
    let Run { code, out, err } = mpirun(2, &[], &["again"]);
    assert_eq!(code, Some(0), "{out}{err}");
}
