//! Links compared with raw MPI and memory copy: latency and bandwidth over message sizes, and the exposed
//! communication of a training step.
//!
//! `cargo bench -p benches --bench link` measures memory copy, threads and TCP. With `--features mpi` it also
//! measures MPI, raw and through the link in turn, by running itself under `mpirun -n 2`.
//!
//! 1. A message is one tensor that goes to the other rank and back; half of that time counts. It includes the other
//!    rank's handling, which only sends it back, but not making the tensor.
//! 2. Raw MPI is `MPI_Send` and `MPI_Recv` of the same bytes; memory copy is one copy of them.
//! 3. All sizes are measured several times in turn, so that other load on the machine affects all alike. Medians,
//!    and the 10th and 90th percentiles.
//! 4. A step is trained over each link, and once more with nothing sent ahead: a message then starts only when its
//!    receiver waits for it. The trace gives the exposed part of each receive ([`exposed`]).

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark prints and may stop")]

#[path = "link/pulled.rs"]
mod pulled;
#[path = "link/samples.rs"]
mod samples;
#[path = "link/step.rs"]
mod step;
#[path = "link/there_and_back.rs"]
mod there_and_back;
#[cfg(feature = "mpi")]
#[path = "link/under_mpi.rs"]
mod under_mpi;

use benches::flags::Flags;
use samples::Samples;
use std::net::TcpListener;

/// The rounds over all sizes.
const ROUNDS: usize = 3;

/// A port that is free now.
fn port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn main() {
    let flags = Flags::read(&[("--role NAME", "the role of a process under `mpirun`; set by the bench itself")]);
    #[cfg(feature = "mpi")]
    if let Some(role) = flags.text("--role") {
        return under_mpi::play(role);
    }
    #[cfg(not(feature = "mpi"))]
    assert!(flags.text("--role").is_none(), "--role needs the feature mpi");
    let mut samples = Samples::default();
    for _ in 0..ROUNDS {
        there_and_back::memory_copy(&mut samples);
        there_and_back::threads(&mut samples);
        there_and_back::tcp(&mut samples);
        #[cfg(feature = "mpi")]
        for role in ["raw", "link"] {
            samples.read(&under_mpi::run(role));
        }
    }
    println!("one way, two ranks on this machine: microseconds, median (10%..90%), and GB/s of the median");
    samples.print();
    println!();
    println!("a training step, {}", step::describe());
    println!("| link | sent ahead | step ms (10%..90%) | exposed ms | of the step | waiting for computation ms |");
    println!("|---|---|---|---|---|---|");
    print!("{}", step::over_threads());
    print!("{}", step::over_tcp());
    #[cfg(feature = "mpi")]
    for role in ["step", "step-pulled"] {
        print!("{}", under_mpi::run(role));
    }
}
