//! One rank of the tests over MPI: `tests/mpi` runs it under `mpirun`. The argument says what it does.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test's program fails by panicking, and tells"
)]

mod conform;

use burn_pipeline::link::Mpi;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Duration;

/// The longest that starting and ending may take.
const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mpi = match Mpi::connect(PATIENCE) {
        Ok(mpi) => mpi,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    };
    let done = catch_unwind(AssertUnwindSafe(|| match arguments.as_slice() {
        ["conformance"] => conform::all(&mpi),
        ["groups"] => conform::groups(&mpi),
        ["again"] => conform::once_only(),
        other => panic!("there is no test {other:?}"),
    }));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        // Said by the panic already.
        Err(_) => mpi.end_job(101),
    }
}
