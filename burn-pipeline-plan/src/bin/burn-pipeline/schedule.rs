//! `schedule`: builds a plan of a schedule, inserts transfers and waits on request, and prints the plan.

use crate::failure::Failure;
use crate::source::{build, schedule};
use burn_pipeline_plan::pass::{Placing, WaitOptions};
use std::io::Write;

/// The most stages that `--shard` keeps gathered on a rank.
const ACTIVE_STAGES: usize = 3;

/// How a plan is printed.
#[derive(clap::ValueEnum, Clone, Copy, Debug)]
enum Format {
    /// One row per rank, one cell per action.
    Csv,
    /// One column per rank, one line per step.
    Grid,
    /// With the plan's name, placement and numbers of microbatches.
    Json,
}

/// Which transfers and collectives get waits, and where.
#[derive(clap::ValueEnum, Clone, Copy, Debug)]
enum Waits {
    /// All of them, right after the start.
    AtOnce,
    /// All of them, as late as possible: before the result is used.
    Late,
    /// As in PyTorch 2.15: sends as late as possible, reductions right after the start.
    Pytorch,
}

impl Waits {
    fn options(self) -> WaitOptions {
        match self {
            Waits::AtOnce => WaitOptions::all(Placing::AtOnce),
            Waits::Late => WaitOptions::all(Placing::Late),
            Waits::Pytorch => WaitOptions::pytorch(),
        }
    }
}

/// The flags of `schedule`.
#[derive(clap::Args, Debug)]
pub(crate) struct Arguments {
    /// The schedule (see `schedules`).
    #[arg(long)]
    name: String,
    /// Number of ranks (devices).
    #[arg(long, value_name = "P")]
    ranks: usize,
    /// Number of stages per rank [default: the number that the schedule needs, otherwise 2].
    #[arg(long, value_name = "V")]
    chunks: Option<usize>,
    /// Number of microbatches per step.
    #[arg(long, value_name = "M")]
    microbatches: usize,
    /// The first stage that trains; stages before it get no backward.
    #[arg(long, value_name = "STAGE", default_value_t = 0)]
    train_from: usize,
    /// Insert sends and receives.
    #[arg(long)]
    lower: bool,
    /// Pad rows with idle cells, so that every rank runs cell k in step k: the form of PyTorch's schedules without
    /// transfers.
    #[arg(long, conflicts_with_all = ["lower", "shard", "waits"])]
    steps: bool,
    /// Insert UNSHARD and RESHARD, which gather and release sharded parameters. A rank keeps at most 3 stages gathered.
    #[arg(long)]
    shard: bool,
    /// Insert waits. Waits of sends and receives need --lower.
    #[arg(long, value_enum)]
    waits: Option<Waits>,
    /// How to print the plan.
    #[arg(long, value_enum, default_value = "csv")]
    format: Format,
}

pub(crate) fn run(arguments: &Arguments, out: &mut impl Write) -> Result<(), Failure> {
    let Arguments { ranks, chunks, microbatches, .. } = *arguments;
    let mut plan = build(&*schedule(&arguments.name, None)?, ranks, chunks, microbatches)?;
    plan = plan.train_from(arguments.train_from)?;
    if arguments.steps {
        plan = plan.with_idle()?;
    }
    if arguments.shard {
        plan = plan.with_unshard(ACTIVE_STAGES)?;
    }
    if arguments.lower {
        plan = plan.with_transfers()?;
    }
    if let Some(waits) = arguments.waits {
        plan = plan.with_waits(&waits.options());
    }
    match arguments.format {
        Format::Csv => write!(out, "{}", plan.to_csv())?,
        Format::Grid => writeln!(out, "{}", plan.grid().trim_end_matches('\n'))?,
        Format::Json => {
            let json = serde_json::to_string_pretty(&plan).map_err(|error| Failure::Input(error.to_string()))?;
            writeln!(out, "{json}")?;
        }
    }
    Ok(())
}
