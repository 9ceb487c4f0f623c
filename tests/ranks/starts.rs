//! Ranks that do not open the link that the others open, or end before it.

use burn::tensor::Device;
use burn_pipeline_mpi::Mpi;
use std::time::{Duration, Instant};

/// The timeout of opening a link.
const TIMEOUT: Duration = Duration::from_secs(3);

fn link(mpi: &Mpi, since: Instant) {
    let rank = mpi.rank();
    match mpi.link(Device::flex()).map(drop) {
        Ok(()) => println!("rank {rank} has a link"),
        Err(error) => println!("rank {rank} after {:.1} s: {error}", since.elapsed().as_secs_f64()),
    }
}

/// Rank 1 does something else while all others open a link: it sleeps (`absent`), drops its `Mpi` (`leaves`), or
/// arrives after the others have given up (`late`). With `nobody`, no rank opens one. Then all end as `ends` says:
/// `drop` or `end_job`.
pub(crate) fn run(odd: &str, ends: &str) {
    // If a rank leaves, nobody waits for the timeout.
    let mpi = Mpi::connect(if odd == "leaves" { 10 * TIMEOUT } else { TIMEOUT }).unwrap();
    let (rank, since) = (mpi.rank(), Instant::now());
    match (odd, rank) {
        // Sleeps longer than the others and the tests wait; then the process just ends.
        ("absent", 1) => {
            std::thread::sleep(20 * TIMEOUT);
            std::process::exit(7);
        }
        ("late", 1) => {
            std::thread::sleep(TIMEOUT + TIMEOUT / 2);
            link(&mpi, since);
        }
        ("leaves", 1) | ("nobody", _) => {}
        _ => link(&mpi, since),
    }
    let since = Instant::now();
    if ends == "end_job" && rank != 1 {
        println!("rank {rank} ends the job");
        mpi.end_job(5);
    }
    drop(mpi);
    println!("rank {rank} ended after {:.1} s", since.elapsed().as_secs_f64());
}
