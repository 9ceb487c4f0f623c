//! Continues a text with a model that `train_gpt --save` has saved, over a pipeline that only goes forward.
//!
//! `cargo run --release --example generate_gpt -- --from runs/checkpoints --prompt "ROMEO:"`; `-- --help` lists the
//! flags. What it does is in this package's library, in `generation`.

use std::process::ExitCode;

fn main() -> ExitCode {
    let (mut out, mut err) = (std::io::stdout(), std::io::stderr());
    ExitCode::from(pipeline_examples::generation::main(std::env::args_os(), &mut out, &mut err))
}
