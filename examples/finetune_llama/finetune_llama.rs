//! Fine-tunes a Llama with adapters over two ranks, stores the adapters, and generates text.
//!
//! `cargo run --release -p finetune-llama --example finetune_llama` trains the tiny model of this folder; with
//! `-- --base FOLDER --text FILE --rank 16`, a model as Hugging Face's `transformers` stores it. `-- --help` lists the
//! flags. Read `src/finetune.rs` from top to bottom; the model is in `src/model.rs`.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(finetune_llama::run(std::env::args_os(), &mut std::io::stdout(), &mut std::io::stderr()))
}
