//! Continues a text with a model saved by `train_gpt --save`, over a forward-only pipeline.
//!
//! First run `cargo run --release -p pipeline-examples --example train_gpt -- --save runs/checkpoints`, then
//!
//! `cargo run --release -p pipeline-examples --example generate_gpt -- --from runs/checkpoints --prompt "ROMEO:"`;
//! `-- --help` lists the flags.
//!
//! The pipeline may have another number of ranks than the one that saved the checkpoint. Each text is a microbatch:
//! with several texts, ranks work concurrently; a single text goes from rank to rank. Ranks cache keys and values,
//! so each byte runs once until the text fills the model's window.

use burn_pipeline::schedule::{ForwardOnly, Size};
use burn_pipeline::train::{CheckpointError, Checkpoints, Pipeline};
use clap::Parser;
use pipeline_examples::device::{DeviceError, DeviceName};
use pipeline_examples::generate::{Generator, Sampling, generate, generate_cached};
use pipeline_examples::saved::RunFlags;
use pipeline_examples::training::TrainError;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

/// Runs the program.
pub fn main() -> ExitCode {
    ExitCode::from(run(std::env::args_os(), &mut std::io::stdout(), &mut std::io::stderr()))
}

/// Parses the arguments and runs; returns the exit code.
pub fn run(arguments: impl Iterator<Item = OsString>, out: &mut dyn Write, err: &mut dyn Write) -> u8 {
    let options = match GenerateOptions::try_parse_from(arguments) {
        Ok(options) => options,
        Err(error) => {
            let _ = if error.use_stderr() { write!(err, "{error}") } else { write!(out, "{error}") };
            return error.exit_code() as u8;
        }
    };
    let began = Instant::now();
    let written = texts(&options).and_then(|texts| {
        let (seconds, bytes) = (began.elapsed().as_secs_f64(), texts.iter().map(Vec::len).sum::<usize>());
        for text in texts {
            writeln!(out, "{}{}\n", options.prompt, String::from_utf8_lossy(&text))?;
        }
        writeln!(err, "{bytes} bytes in {seconds:.2} s, {:.0} per second", bytes as f64 / seconds)?;
        Ok(())
    });
    match written {
        Ok(()) => 0,
        Err(error) => {
            let _ = writeln!(err, "error: {error}");
            1
        }
    }
}

/// The texts' new bytes.
///
/// # Errors
/// Returns a [`GenerateError`] if no text can be generated.
pub fn texts(options: &GenerateOptions) -> Result<Vec<Vec<u8>>, GenerateError> {
    if options.prompt.is_empty() {
        return Err(GenerateError::NoPrompt);
    }
    if options.texts == 0 {
        return Err(GenerateError::NoTexts);
    }
    if options.temperature.is_nan() || options.temperature <= 0.0 {
        return Err(GenerateError::Temperature(options.temperature));
    }
    let device = options.device.open()?;
    let checkpoint = Checkpoints::new(&options.from).latest()?;
    let model = checkpoint.beside::<RunFlags>()?.model();
    let seq = model.seq;
    let size = Size::new(options.ranks, options.texts);
    let builder = Pipeline::builder().schedule(ForwardOnly, size).devices(vec![device.clone()]);
    let builder = match options.uncached {
        true => builder.layers(model.model()),
        false => builder.stages(move |at| Generator::stage(&model, at)),
    };
    let mut pipeline = builder.build().map_err(TrainError::from)?;
    pipeline.load_weights(&checkpoint)?;
    let GenerateOptions { length, texts, temperature, seed, .. } = *options;
    let sampling = Sampling { length, texts, temperature, seed };
    let generate = if options.uncached { generate } else { generate_cached };
    Ok(generate(&mut pipeline, &device, seq, options.prompt.as_bytes(), &sampling)?)
}

/// Continues a text with a model that `train_gpt --save` has saved.
#[derive(Parser, Debug, Clone)]
#[command(name = "generate_gpt")]
pub struct GenerateOptions {
    /// The folder of checkpoints; the latest one is used.
    #[arg(long, value_name = "FOLDER")]
    pub from: PathBuf,
    /// The number of ranks, each a thread with its share of the model's blocks.
    #[arg(long, default_value_t = 2, value_name = "N")]
    pub ranks: usize,
    /// The start of the text.
    #[arg(long, default_value = "\n", value_name = "TEXT")]
    pub prompt: String,
    /// The number of bytes to add.
    #[arg(long, default_value_t = 400, value_name = "N")]
    pub length: usize,
    /// The number of texts to generate, each with its own random numbers.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub texts: usize,
    /// Above 0; below 1, likely bytes become likelier.
    #[arg(long, default_value_t = 0.8, value_name = "T")]
    pub temperature: f64,
    /// The seed of the random numbers.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
    /// Run the whole window for every byte, instead of caching keys and values.
    #[arg(long)]
    pub uncached: bool,
    /// The device to compute on.
    #[arg(long, value_enum, default_value_t = DeviceName::Flex, value_name = "NAME")]
    pub device: DeviceName,
}

/// Why no text was generated.
#[derive(thiserror::Error)]
pub enum GenerateError {
    /// An empty prompt.
    #[error("--prompt is empty; the model continues a text of at least one byte")]
    NoPrompt,
    /// No texts were requested.
    #[error("--texts must be at least 1")]
    NoTexts,
    /// The temperature is not above 0.
    #[error("--temperature {0} must be more than 0")]
    Temperature(f64),
    /// The device is not available.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// There is no checkpoint, or it cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The pipeline cannot be built, or a rank failed.
    #[error(transparent)]
    Run(#[from] TrainError),
    /// Standard output is closed.
    #[error("the output cannot be written: {0}")]
    Output(#[from] io::Error),
}

burn_pipeline::debug_as_text!(GenerateError);
