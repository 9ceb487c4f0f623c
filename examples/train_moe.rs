//! Trains a byte-level GPT with blocks of experts on Shakespeare's plays, its layers cut into stages over in-process
//! ranks, with the routers' auxiliary losses injected on every stage.
//!
//! `cargo run --release --example train_moe` takes some minutes on two cores; `-- --help` lists the flags. What it does
//! is in this package's library: `moe_options` checks the flags, `moe_gpt` is the model, `moe_training` runs the steps,
//! `expert_load` draws the experts' load, `moe_run` tells the whole in order.

use std::process::ExitCode;

fn main() -> ExitCode {
    let (mut out, mut err) = (std::io::stdout(), std::io::stderr());
    ExitCode::from(pipeline_examples::moe::run::main(std::env::args_os(), &mut out, &mut err))
}
