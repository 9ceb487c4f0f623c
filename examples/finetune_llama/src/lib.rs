//! Fine-tunes a Llama from a folder of Hugging Face's, with adapters, over a pipeline; `finetune_llama` is the program.
//!
//! 1. [`config`] reads the model's sizes, [`text`] its tokenizer, [`weights`] its weights.
//! 2. [`model`] is the list of layers, with adapters on chosen projections.
//! 3. [`finetune`] trains them, and stores them as PEFT does, in folders that `output` replaces; [`generate`] generates
//!    text from what is stored.

pub mod config;
pub mod error;
pub mod finetune;
pub mod generate;
pub mod model;
pub mod options;
mod output;
pub mod rotary;
pub mod text;
pub mod weights;

use clap::Parser;
use options::Options;
use std::ffi::OsString;
use std::io::Write;

/// Parses the arguments and runs; returns the exit code: 2 for a command line that cannot be parsed, 1 for any other
/// failure.
pub fn run(arguments: impl Iterator<Item = OsString>, out: &mut dyn Write, err: &mut dyn Write) -> u8 {
    let options = match Options::try_parse_from(arguments) {
        Ok(options) => options,
        Err(error) => {
            // A closed stream is ignored.
            let _ = if error.use_stderr() { write!(err, "{error}") } else { write!(out, "{error}") };
            return error.exit_code() as u8;
        }
    };
    match finetune::finetune(&options, out) {
        Ok(()) => 0,
        Err(error) => {
            let _ = writeln!(err, "error: {error}");
            1
        }
    }
}
