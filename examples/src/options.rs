//! The flags of `train_gpt`. [`Options::check`] makes a [`Setup`](crate::setup::Setup) of them.

use crate::cut::Cut;
use crate::device::DeviceName;
use clap::{ArgAction, Parser, ValueEnum};
use std::path::PathBuf;

/// Trains a byte-level GPT on Shakespeare's plays, as a pipeline of stages over ranks.
#[derive(Parser, Debug, Clone)]
#[command(name = "train_gpt")]
pub struct Options {
    /// Family of schedules, such as 1F1B, GPipe, Interleaved1F1B or ZBVZeroBubble; `auto` measures a few steps and takes
    /// up the schedule, and the cut, that the planner finds for them.
    #[arg(long, default_value = "1F1B", value_name = "NAME")]
    pub schedule: String,
    /// Ranks of a replica, each with its own stages and its own compute threads [default: 2; with `--link mpi`, as many as
    /// `mpirun` started, over `--data-parallel`].
    #[arg(long, value_name = "N")]
    pub ranks: Option<usize>,
    /// What ranks are, and how they reach each other.
    #[arg(long, value_enum, default_value_t = LinkName::Threads, value_name = "NAME")]
    pub link: LinkName,
    /// Replicas of the pipeline, each with ranks of its own, which share every batch out among them.
    #[arg(long, default_value_t = 1, value_parser = at_least_one, value_name = "N")]
    pub data_parallel: usize,
    /// Keeps of each parameter, its gradient and optimizer state one piece a replica, instead of all on every one.
    #[arg(long)]
    pub sharded: bool,
    /// Starts so many processes on this machine, with `mpirun`, and runs one rank in each.
    #[arg(long, conflicts_with_all = ["link", "ranks"], value_parser = at_least_one, value_name = "N")]
    pub processes: Option<usize>,
    /// Goes on with the processes that are left when one is lost: from the latest checkpoint, with a plan for so many.
    #[arg(long, requires = "processes", requires = "save_every")]
    pub restart: bool,
    /// Stages a rank [default: what the schedule asks for, else 1].
    #[arg(long, value_name = "N")]
    pub chunks: Option<usize>,
    /// Microbatches that a replica cuts its part of a batch into.
    #[arg(long, default_value_t = 4, value_name = "N")]
    pub microbatches: usize,
    /// Training steps.
    #[arg(
        long, default_value_t = 450, default_value_if("long", "true", "1800"), value_parser = at_least_one, value_name = "N"
    )]
    pub steps: usize,
    /// Trains for 1,800 steps instead of a minute.
    #[arg(long, conflicts_with = "steps")]
    pub long: bool,
    /// Windows of text a step.
    #[arg(long, default_value_t = 8, value_parser = at_least_one, value_name = "N")]
    pub batch: usize,
    /// Bytes of a window.
    #[arg(long, default_value_t = 128, value_parser = at_least_one, value_name = "N")]
    pub seq: usize,
    /// Width of the hidden state.
    #[arg(long, default_value_t = 128, value_parser = at_least_one, value_name = "N")]
    pub d_model: usize,
    /// Transformer blocks.
    #[arg(long, default_value_t = 4, value_parser = at_least_one, value_name = "N")]
    pub layers: usize,
    /// Attention heads; they divide the width.
    #[arg(long, default_value_t = 4, value_parser = at_least_one, value_name = "N")]
    pub heads: usize,
    /// Learning rate at its highest: it rises linearly, then falls to a tenth along a cosine.
    #[arg(long, default_value_t = 3e-3, value_name = "RATE")]
    pub lr: f64,
    /// What initial weights, the order of data and the sample depend on.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
    /// Where to compute.
    #[arg(long, value_enum, default_value_t = DeviceName::Flex, value_name = "NAME")]
    pub device: DeviceName,
    /// Compute threads of each rank (flex).
    #[arg(long, default_value_t = 1, value_parser = at_least_one, value_name = "N")]
    pub threads: usize,
    /// Whether stages are compiled, on processors: faster, and within rounding of the plain loop. [default: true in `train_gpt`;
    /// false in `train_moe`, whose experts are compiled only with a capacity]
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", value_name = "true|false")]
    pub compile: Option<bool>,
    /// Seconds that a rank waits for another one before it gives it up for lost.
    #[arg(long, default_value_t = 120, value_parser = at_least_one_second, value_name = "SECONDS")]
    pub timeout: u64,
    /// Where the timeline of the last steps goes: a folder, or a file ending in .json or .svg (both are written).
    #[arg(long, default_value = "runs/train_gpt", value_name = "PATH")]
    pub trace: PathBuf,
    /// A plan as CSV (a row a rank, a cell an action) to run instead of a schedule; it sets ranks, chunks and
    /// microbatches.
    #[arg(long, value_name = "FILE.csv")]
    pub plan: Option<PathBuf>,
    /// Where to cut the model: `even` (by number of blocks), `optimal` (by what its layers take, measured first), or
    /// stages such as EAA|AAL (E the embedding, A a block, L the head).
    #[arg(long, default_value = "even", value_name = "CUT")]
    pub cut: Cut,
    /// The layers' costs for `--cut optimal`: read if the file is there, else measured and written.
    #[arg(long, value_name = "FILE.json")]
    pub costs: Option<PathBuf>,
    /// A folder for checkpoints: one is saved at the end, the last three are kept.
    #[arg(long, value_name = "FOLDER")]
    pub save: Option<PathBuf>,
    /// Saves a checkpoint every so many steps, too.
    #[arg(long, requires = "save", value_parser = at_least_one, value_name = "N")]
    pub save_every: Option<usize>,
    /// Goes on from the latest checkpoint in the folder, if there is one; schedule, ranks and device may be others.
    #[arg(long, requires = "save")]
    pub resume: bool,
    /// Keeps only the inputs of stages from forward to backward, and computes the rest again: less memory, more time.
    #[arg(long)]
    pub recompute: bool,
    /// Batches of held-out text that are evaluated at the end [default: all, which on a slow device takes longer than many steps].
    #[arg(long, value_parser = at_least_one, value_name = "N")]
    pub held_out: Option<usize>,
    /// `text` draws a progress bar; `json` writes one line a step on standard output and all else elsewhere.
    #[arg(long, value_enum, default_value_t = LogFormat::Text, value_name = "FORMAT")]
    pub log: LogFormat,
}

/// What ranks are, and how they reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LinkName {
    /// Threads of this process.
    Threads,
    /// Processes that `mpirun` started, on one machine or many; feature `mpi`.
    Mpi,
    /// Processes that torchrun, Slurm or RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT made ranks, over TCP.
    Tcp,
    /// The same, each with a GPU of its own, over NCCL; feature `nccl`. `--device` is `cuda` then.
    Nccl,
}

/// How steps are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// A progress bar, and a line now and then.
    Text,
    /// One JSON object a step.
    Json,
}

fn at_least_one_second(text: &str) -> Result<u64, String> {
    at_least_one(text).map(|seconds| seconds as u64)
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(0) => Err("it is at least 1".to_owned()),
        other => other.map_err(|_| "it is a whole number of at least 1".to_owned()),
    }
}
