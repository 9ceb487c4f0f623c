//! Runs this program as two ranks under `mpirun`.

use crate::samples::{SIZES, Samples, repetitions};
use crate::step;
use crate::there_and_back::{TIMEOUT, measure};
use burn::tensor::Device;
use burn_pipeline_mpi::Mpi;
use mpi::traits::{Communicator, Destination, Source};
use std::process::Command;
use std::time::Instant;

/// Runs a role on two ranks; returns rank 0's output.
pub(crate) fn run(role: &str) -> String {
    let mut command = Command::new("mpirun");
    command.args(["-n", "2", "--oversubscribe", "--allow-run-as-root"]);
    command.arg(std::env::current_exe().unwrap()).args(["--role", role]);
    let done = command.output().unwrap();
    assert!(done.status.success(), "mpirun: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

/// Runs a role as one of the ranks.
pub(crate) fn play(role: &str) {
    if role == "raw" {
        return raw();
    }
    let mpi = Mpi::connect(TIMEOUT).unwrap();
    let link = || Box::new(mpi.link(Device::flex()).unwrap());
    match role {
        "link" => {
            let mut samples = Samples::default();
            measure(link().as_mut(), "MPI", &mut samples);
            print!("{}", samples.write());
        }
        "step" => print!("{}", step::of_this_process("MPI", "yes", link())),
        "step-pulled" => {
            let pulled = step::pulled(mpi.rank(), |_| link());
            print!("{}", step::of_this_process("MPI", "no", Box::new(pulled)));
        }
        other => panic!("there is no role {other}"),
    }
}

/// `MPI_Send` and `MPI_Recv` alone.
fn raw() {
    let universe = mpi::initialize().unwrap();
    let world = universe.world();
    let peer = world.process_at_rank(1 - world.rank());
    let mut samples = Samples::default();
    for size in SIZES {
        let mut bytes = vec![1u8; size];
        let (warm, count) = (3, repetitions(size));
        let mut seconds = Vec::new();
        for round in 0..count + warm {
            let began = Instant::now();
            if world.rank() == 0 {
                peer.send(&bytes[..]);
                peer.receive_into(&mut bytes[..]);
            } else {
                peer.receive_into(&mut bytes[..]);
                peer.send(&bytes[..]);
            }
            if round >= warm {
                seconds.push(began.elapsed().as_secs_f64() / 2.0);
            }
        }
        samples.add("raw MPI", size, &seconds);
    }
    if world.rank() == 0 {
        print!("{}", samples.write());
    }
}
