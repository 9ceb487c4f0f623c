//! `schedule`: build a plan, lower it if asked, print it.

use crate::failure::Failure;
use crate::source::{Wanted, build, family};
use burn_pipeline_plan::pass::{Placing, WaitOptions, insert_transfers, insert_unshard, insert_waits};
use std::io::Write;

/// How many stages of a rank `--shard` keeps gathered at once.
const ACTIVE_STAGES: usize = 3;

/// How a plan is printed.
#[derive(clap::ValueEnum, Clone, Copy, Debug)]
enum Format {
    /// One row a rank, one cell an action.
    Csv,
    /// One column a rank, one line a step.
    Grid,
    /// With its name, placement and microbatches.
    Json,
}

/// Which starts get waits of their own, and where.
#[derive(clap::ValueEnum, Clone, Copy, Debug)]
enum Waits {
    /// Of all, right behind the start.
    AtOnce,
    /// Of all, as late as the use of what they wait for allows.
    Late,
    /// Where PyTorch 2.15 writes them down: of sends late, of reductions at once.
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
    /// The family, see `schedules`.
    #[arg(long)]
    name: String,
    /// Ranks (devices).
    #[arg(long, value_name = "P")]
    ranks: usize,
    /// Stages a rank [default: what the family needs, else 2].
    #[arg(long, value_name = "V")]
    chunks: Option<usize>,
    /// Microbatches a step.
    #[arg(long, value_name = "M")]
    microbatches: usize,
    /// Insert sends and receives.
    #[arg(long)]
    lower: bool,
    /// Insert UNSHARD and RESHARD, for at most 3 gathered stages a rank (before --lower).
    #[arg(long)]
    shard: bool,
    /// Insert waits, after --lower for those of sends and receives.
    #[arg(long, value_enum)]
    waits: Option<Waits>,
    /// How to print it.
    #[arg(long, value_enum, default_value = "csv")]
    format: Format,
}

/// Prints the plan.
pub(crate) fn run(arguments: &Arguments, out: &mut impl Write) -> Result<(), Failure> {
    let Arguments { ranks, chunks, microbatches, .. } = *arguments;
    let mut plan = build(&*family(&arguments.name, None)?, Wanted { ranks, chunks, microbatches })?;
    if arguments.shard {
        plan = insert_unshard(&plan, ACTIVE_STAGES)?;
    }
    if arguments.lower {
        plan = insert_transfers(&plan)?;
    }
    if let Some(waits) = arguments.waits {
        plan = insert_waits(&plan, &waits.options());
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
