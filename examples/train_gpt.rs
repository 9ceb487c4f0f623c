//! Trains a byte-level GPT on Shakespeare's plays, its layers cut into stages over ranks: threads of this process, or
//! processes, with feature `mpi` and `mpirun -n 4 target/release/examples/train_gpt --link mpi`, or with `--processes 4`,
//! which calls `mpirun`, and with `--save FOLDER --save-every 50 --restart` goes on when a process is lost.
//! Without MPI, torchrun or Slurm start them with `--link tcp`, or `--link nccl` where each has a GPU (feature `nccl`).
//!
//! `cargo run --release --example train_gpt` takes a few minutes on two cores; `-- --help` lists the flags. What
//! it does is in this package's library: `options` checks the flags, `training` runs the steps, `run` tells the
//! whole in order.

use std::process::ExitCode;

fn main() -> ExitCode {
    let (mut out, mut err) = (std::io::stdout(), std::io::stderr());
    ExitCode::from(pipeline_examples::run::main(std::env::args_os(), &mut out, &mut err))
}
