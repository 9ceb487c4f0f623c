//! The flags of `finetune_llama`.

use crate::error::FinetuneError;
use clap::{ArgAction, Parser, ValueEnum};
use pipeline_examples::device::DeviceName;
use pipeline_examples::options::at_least_one;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The projections of a block, by the last part of their names.
pub const PROJECTIONS: [&str; 7] = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"];

/// Fine-tunes a Llama with adapters (LoRA), as a pipeline of stages over ranks; stores the adapters, and writes a text.
#[derive(Parser, Debug, Clone)]
#[command(name = "finetune_llama")]
pub struct Options {
    /// The model's folder, as Hugging Face's `transformers` stores it: config.json, tokenizer.json and weights
    /// [default: the tiny model of this example].
    #[arg(long, value_name = "FOLDER")]
    pub base: Option<PathBuf>,
    /// The text to train on [default: the second half of Shakespeare's plays; the tiny model knows the first].
    #[arg(long, value_name = "FILE")]
    pub text: Option<PathBuf>,
    /// Starts from the adapters of this folder, as PEFT stores them, with their rank, scale and projections.
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["rank", "alpha", "target"])]
    pub adapters: Option<PathBuf>,
    /// The rank of the adapters.
    #[arg(long, default_value_t = 2, value_parser = at_least_one, value_name = "N")]
    pub rank: usize,
    /// The scale of the adapters times their rank [default: twice the rank].
    #[arg(long, value_name = "N")]
    pub alpha: Option<f64>,
    /// The projections that get adapters.
    #[arg(long, value_delimiter = ',', default_value = "q_proj,v_proj", value_name = "NAMES")]
    pub target: Vec<String>,
    /// The schedule, such as 1F1B or ZBVZeroBubble. `auto` measures a few steps, then switches to the planner's best
    /// schedule and cut for them.
    #[arg(long, default_value = "1F1B", value_name = "NAME")]
    pub schedule: String,
    /// The number of ranks, each a thread with its own stages.
    #[arg(long, default_value_t = 2, value_parser = at_least_one, value_name = "N")]
    pub ranks: usize,
    /// The number of stages per rank.
    #[arg(long, default_value_t = 1, value_parser = at_least_one, value_name = "N")]
    pub chunks: usize,
    /// The number of microbatches of a batch.
    #[arg(long, default_value_t = 4, value_parser = at_least_one, value_name = "N")]
    pub microbatches: usize,
    /// The number of training steps; with 0, given adapters are used as they are.
    #[arg(long, default_value_t = 150, value_name = "N")]
    pub steps: usize,
    /// The number of text windows per step.
    #[arg(long, default_value_t = 8, value_parser = at_least_one, value_name = "N")]
    pub batch: usize,
    /// The number of tokens in a window.
    #[arg(long, default_value_t = 128, value_parser = at_least_one, value_name = "N")]
    pub seq: usize,
    /// The peak learning rate: it rises linearly, then falls to a tenth along a cosine.
    #[arg(long, default_value_t = 5e-3, value_name = "RATE")]
    pub lr: f64,
    /// The seed of the adapters' first values, the order of data and the sample.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
    /// `bf16` holds the base in bf16 and computes in it; adapters and their optimizer stay f32.
    #[arg(long, value_enum, default_value_t = PrecisionName::F32, value_name = "NAME")]
    pub precision: PrecisionName,
    /// The device to compute on.
    #[arg(long, value_enum, default_value_t = DeviceName::Flex, value_name = "NAME")]
    pub device: DeviceName,
    /// Compiles stages on processors: faster, and within rounding of the plain loop.
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_value = "true", default_missing_value = "true",
        value_name = "true|false")]
    pub compile: bool,
    /// The folder for what is written: `adapters`, `merged` and `checkpoints`. A run replaces the `adapters` and
    /// `merged` of an earlier one, but none that another program wrote or that it reads itself.
    #[arg(long, default_value = "runs/finetune_llama", value_name = "FOLDER")]
    pub out: PathBuf,
    /// Saves a checkpoint every N steps; the last two are kept. Frozen weights are not saved again: keep the folder
    /// that `--base` names.
    #[arg(long, value_parser = at_least_one, value_name = "N")]
    pub save_every: Option<usize>,
    /// Resumes from the latest checkpoint, if there is one; schedule, ranks and device may differ.
    #[arg(long)]
    pub resume: bool,
    /// Also writes the model with its adapters added to its weights, as a folder like the base's.
    #[arg(long)]
    pub merge: bool,
    /// The start of the text that is written at the end.
    #[arg(long, default_value = "ROMEO:\n", value_name = "TEXT")]
    pub prompt: String,
    /// The number of tokens to add.
    #[arg(long, default_value_t = 120, value_name = "N")]
    pub length: usize,
    /// The number of texts, each with its own random numbers.
    #[arg(long, default_value_t = 1, value_parser = at_least_one, value_name = "N")]
    pub texts: usize,
    /// 0 takes the likeliest token; below 1, likely tokens become likelier.
    #[arg(long, default_value_t = 0.8, value_name = "T")]
    pub temperature: f64,
}

/// The type in which the base is held and computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PrecisionName {
    /// Everything is f32.
    F32,
    /// Matrices are bf16.
    Bf16,
}

/// The flags that losses depend on; a run resumes only with equal ones.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct RunFlags {
    base: PathBuf,
    text: Option<PathBuf>,
    rank: usize,
    alpha: f64,
    target: Vec<String>,
    steps: usize,
    batch: usize,
    seq: usize,
    lr: f64,
    seed: u64,
}

impl Options {
    /// The model's folder.
    pub fn base(&self) -> PathBuf {
        self.base.clone().unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("tiny"))
    }

    pub(crate) fn run_flags(&self, tuning: &crate::model::Tuning) -> RunFlags {
        let Options { text, steps, batch, seq, lr, seed, .. } = self.clone();
        let (rank, alpha, target) = (tuning.rank, tuning.alpha, tuning.targets.clone());
        RunFlags { base: self.base(), text, rank, alpha, target, steps, batch, seq, lr, seed }
    }

    /// Checks what the command line alone can tell, against the most tokens that the model takes.
    ///
    /// # Errors
    /// Returns a [`FinetuneError`] for invalid flags.
    pub(crate) fn check(&self, prompt: usize, window: usize) -> Result<(), FinetuneError> {
        if prompt == 0 {
            return Err(FinetuneError::NoPrompt);
        }
        for (flag, tokens) in [("--seq", self.seq), ("--length", prompt + self.length)] {
            if tokens > window {
                return Err(FinetuneError::Window { flag, tokens, window });
            }
        }
        if self.temperature.is_nan() || self.temperature < 0.0 {
            return Err(FinetuneError::Temperature(self.temperature));
        }
        let idle = [
            ("--resume", self.resume),
            ("--save-every", self.save_every.is_some()),
            ("--merge without --adapters", self.merge && self.adapters.is_none()),
        ];
        if let Some((flag, _)) = idle.into_iter().find(|(_, given)| self.steps == 0 && *given) {
            return Err(FinetuneError::NoSteps { flag });
        }
        match self.target.iter().find(|target| !PROJECTIONS.contains(&target.as_str())) {
            Some(target) => Err(FinetuneError::Target { target: target.clone() }),
            None => Ok(()),
        }
    }
}
