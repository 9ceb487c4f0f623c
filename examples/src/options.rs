//! The flags of `train_gpt`. [`Options::check`] makes a [`Setup`](crate::setup::Setup) of them.

use crate::cut::Cut;
use crate::device::DeviceName;
use burn_pipeline::stage::Precision;
use clap::{ArgAction, Parser, ValueEnum};
use std::path::PathBuf;

/// Trains a byte-level GPT on Shakespeare's plays, as a pipeline of stages over ranks.
#[derive(Parser, Debug, Clone)]
#[command(name = "train_gpt")]
pub struct Options {
    /// The schedule, such as 1F1B, GPipe, Interleaved1F1B or ZBVZeroBubble. `auto` measures a few steps, then
    /// switches to the planner's best schedule and cut for them.
    #[arg(long, default_value = "1F1B", value_name = "NAME")]
    pub schedule: String,
    /// The number of ranks of a replica, each with its own stages and compute threads [default: 2; with
    /// `--link mpi`, the number of processes divided by `--data-parallel`].
    #[arg(long, value_name = "N")]
    pub ranks: Option<usize>,
    /// What ranks are, and how they communicate.
    #[arg(long, value_enum, default_value_t = LinkName::Threads, value_name = "NAME")]
    pub link: LinkName,
    /// The number of replicas of the pipeline, each with its own ranks. The replicas divide every batch among them.
    #[arg(long, default_value_t = 1, value_parser = at_least_one, value_name = "N")]
    pub data_parallel: usize,
    /// Keeps one piece per replica of each parameter, its gradient and its optimizer state, instead of a whole copy
    /// on each.
    #[arg(long)]
    pub sharded: bool,
    /// Starts this many processes on this machine with `mpirun`, and runs one rank in each over MPI; feature `mpi`.
    #[arg(long, conflicts_with_all = ["link", "ranks"], value_parser = at_least_one, value_name = "N")]
    pub processes: Option<usize>,
    /// Resumes from the latest checkpoint, if there is one; when a process is lost, continues from it with the
    /// remaining ones and a plan for that many.
    #[arg(long, requires = "processes", requires = "save_every")]
    pub restart: bool,
    /// The number of stages per rank [default: the schedule's, else 1].
    #[arg(long, value_name = "N")]
    pub chunks: Option<usize>,
    /// The number of microbatches that a replica cuts its part of a batch into.
    #[arg(long, default_value_t = 4, value_name = "N")]
    pub microbatches: usize,
    /// The number of training steps.
    #[arg(
        long, default_value_t = 450, default_value_if("long", "true", "1800"), value_parser = at_least_one,
        value_name = "N"
    )]
    pub steps: usize,
    /// Trains for 1,800 steps instead of 450: some minutes, for a better model.
    #[arg(long, conflicts_with = "steps")]
    pub long: bool,
    /// The number of text windows per step.
    #[arg(long, default_value_t = 8, value_parser = at_least_one, value_name = "N")]
    pub batch: usize,
    /// The number of bytes in a window.
    #[arg(long, default_value_t = 128, value_parser = at_least_one, value_name = "N")]
    pub seq: usize,
    /// The width of the hidden state.
    #[arg(long, default_value_t = 128, value_parser = at_least_one, value_name = "N")]
    pub d_model: usize,
    /// The number of transformer blocks.
    #[arg(long, default_value_t = 4, value_parser = at_least_one, value_name = "N")]
    pub layers: usize,
    /// The number of attention heads, which must divide the width.
    #[arg(long, default_value_t = 4, value_parser = at_least_one, value_name = "N")]
    pub heads: usize,
    /// The peak learning rate: it rises linearly, then falls to a tenth along a cosine.
    #[arg(long, default_value_t = 3e-3, value_name = "RATE")]
    pub lr: f64,
    /// The seed of initial weights, the order of data and the sample.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
    /// The device to compute on.
    #[arg(long, value_enum, default_value_t = DeviceName::Flex, value_name = "NAME")]
    pub device: DeviceName,
    /// The number of compute threads of each rank (flex).
    #[arg(long, default_value_t = 1, value_parser = at_least_one, value_name = "N")]
    pub threads: usize,
    /// Compiles stages on processors: faster, and within rounding of the plain loop. [default: true in `train_gpt`;
    /// false in `train_moe`, whose experts are compiled only with a capacity]
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", value_name = "true|false")]
    pub compile: Option<bool>,
    /// The type of parameters in forward and backward; masters, gradient sums and the optimizer's state are f32.
    #[arg(long, value_enum, default_value_t = PrecisionName::F32, value_name = "NAME")]
    pub precision: PrecisionName,
    /// The timeout in seconds: how long a rank waits for another one before reporting it as lost.
    #[arg(long, default_value_t = 120, value_parser = at_least_one_second, value_name = "SECONDS")]
    pub timeout: u64,
    /// Where to write the last steps: a folder, or a file ending in .html, .json or .svg. Page, trace, drawing and
    /// profile are written, with that name or into that folder.
    #[arg(long, default_value = "runs/train_gpt", value_name = "PATH")]
    pub trace: PathBuf,
    /// A plan as CSV (a row per rank, a cell per action) to run instead of a schedule; it sets ranks, chunks and
    /// microbatches.
    #[arg(long, value_name = "FILE.csv")]
    pub plan: Option<PathBuf>,
    /// Where to cut the model: `even` (by number of blocks), `optimal` (by its layers' measured times), or stages
    /// such as EAA|AAL (E the embedding, A a block, L the head).
    #[arg(long, default_value = "even", value_name = "CUT")]
    pub cut: Cut,
    /// The layers' costs for `--cut optimal`: read if the file exists, else measured and written.
    #[arg(long, value_name = "FILE.json")]
    pub costs: Option<PathBuf>,
    /// A folder for checkpoints: one is saved at the end, and the last three are kept.
    #[arg(long, value_name = "FOLDER")]
    pub save: Option<PathBuf>,
    /// Also saves a checkpoint every N steps.
    #[arg(long, requires = "save", value_parser = at_least_one, value_name = "N")]
    pub save_every: Option<usize>,
    /// Resumes from the latest checkpoint in the folder, if there is one; schedule, ranks and device may differ.
    #[arg(long, requires = "save")]
    pub resume: bool,
    /// Keeps only the inputs of stages from forward to backward, and recomputes the rest: less memory, more time.
    #[arg(long)]
    pub recompute: bool,
    /// The number of held-out batches to evaluate at the end [default: all, which on a slow device takes longer
    /// than many steps].
    #[arg(long, value_parser = at_least_one, value_name = "N")]
    pub held_out: Option<usize>,
    /// `text` draws a progress bar; `json` writes one line per step to standard output and all else to standard
    /// error.
    #[arg(long, value_enum, default_value_t = LogFormat::Text, value_name = "FORMAT")]
    pub log: LogFormat,
}

/// What ranks are, and how they communicate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LinkName {
    /// Threads of this process.
    Threads,
    /// Processes started by `mpirun`, on one machine or many; feature `mpi`.
    Mpi,
    /// Processes started by torchrun or Slurm, or with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, over TCP.
    Tcp,
    /// The same, each with its own GPU, over NCCL; feature `nccl`. Sets `--device cuda`.
    Nccl,
}

/// The type of parameters in forward and backward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PrecisionName {
    /// Everything is f32.
    F32,
    /// Matrices and embeddings are rounded to bf16.
    Bf16,
    /// Matrices and embeddings are rounded to f16, and the loss is scaled.
    F16,
    /// Matrices and embeddings are bf16 by themselves, without masters: for comparison.
    Bf16Alone,
}

impl PrecisionName {
    /// The precision of a training with masters.
    pub fn half(self) -> Option<Precision> {
        match self {
            PrecisionName::F32 | PrecisionName::Bf16Alone => None,
            PrecisionName::Bf16 => Some(Precision::bf16()),
            PrecisionName::F16 => Some(Precision::f16()),
        }
    }
}

/// How steps are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// A progress bar, and a line now and then.
    Text,
    /// One JSON object per step.
    Json,
}

fn at_least_one_second(text: &str) -> Result<u64, String> {
    at_least_one(text).map(|seconds| seconds as u64)
}

/// Parses a whole number of at least 1.
///
/// # Errors
/// Returns what it must be.
pub fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(0) => Err("must be at least 1".to_owned()),
        other => other.map_err(|_| "must be a whole number of at least 1".to_owned()),
    }
}
