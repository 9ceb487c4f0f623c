//! Links against raw MPI and memory copy: latency and bandwidth over message sizes, and what of a training step is
//! exposed communication.
//!
//! `cargo bench -p benches --bench link` measures memory copy, threads and TCP; with `--features mpi` also MPI, for which
//! it runs itself under `mpirun -n 2`, raw and through the link, by turns.
//!
//! 1. A message is one tensor; it goes to the other rank and comes back, and half of that time counts. What the other
//!    side does with it (nothing but sending it back) is in it; what making it takes is not.
//! 2. Raw MPI is `MPI_Send` and `MPI_Recv` of the same bytes, memory copy is one copy of them.
//! 3. Sizes go round several times, so that whatever else the machine does hits all alike. Medians, and the tenth and
//!    ninetieth of a hundred.
//! 4. A step is trained over each link, and once more with nothing sent ahead: a message then starts its way only when
//!    its receiver stands waiting for it. The trace says what of each receive was exposed ([`exposed`]).

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

use samples::Samples;
use std::net::TcpListener;

/// Rounds over all sizes.
const ROUNDS: usize = 3;

/// A port that is free now.
fn port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn main() {
    #[cfg(feature = "mpi")]
    if let Some(role) = std::env::args().skip_while(|argument| argument != "--role").nth(1) {
        return under_mpi::play(&role);
    }
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
