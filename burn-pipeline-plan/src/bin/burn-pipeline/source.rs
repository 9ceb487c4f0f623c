//! The flags for a plan: a schedule and a size, or a CSV file.

use crate::costs::CostArguments;
use crate::failure::Failure;
use crate::values::{parse, transport};
use burn_pipeline_plan::plan::{Plan, Transport};
use burn_pipeline_plan::schedule::{Chunks, Schedule, Size, ZbAuto, by_name};
use burn_pipeline_plan::simulate::SimulateOptions;
use std::path::{Path, PathBuf};

/// The most actions of a plan. Larger plans are refused, since they would take too much memory.
const MOST_ACTIONS: usize = 100_000_000;

/// The flags for a plan: a schedule and a size, or a file.
#[derive(clap::Args, Debug)]
#[command(group(clap::ArgGroup::new("source").required(true).args(["name", "plan"])))]
pub(crate) struct PlanArguments {
    /// Build a plan of this schedule (see `schedules`); needs --ranks and --microbatches.
    #[arg(long, requires = "ranks", requires = "microbatches")]
    name: Option<String>,
    /// Number of ranks (devices).
    #[arg(long, value_name = "P", requires = "name")]
    ranks: Option<usize>,
    /// Number of stages per rank [default: the number that the schedule needs, otherwise 2].
    #[arg(long, value_name = "V", requires = "name")]
    chunks: Option<usize>,
    /// Number of microbatches per step.
    #[arg(long, value_name = "M", requires = "name")]
    microbatches: Option<usize>,
    /// Read the plan from a CSV file instead, with or without sends and receives.
    #[arg(long, value_name = "FILE.csv")]
    plan: Option<PathBuf>,
    /// The first stage that trains; stages before it get no backward.
    #[arg(long, value_name = "STAGE", default_value_t = 0)]
    train_from: usize,
}

impl PlanArguments {
    /// Builds or reads the plan. The cost-driven schedule gets these costs.
    pub(crate) fn plan(&self, costs: &CostArguments) -> Result<Plan, Failure> {
        let plan = self.source(costs)?;
        // A file may leave backwards out itself.
        Ok(if self.train_from > 0 { plan.train_from(self.train_from)? } else { plan })
    }

    fn source(&self, costs: &CostArguments) -> Result<Plan, Failure> {
        match (&self.plan, &self.name, self.ranks, self.microbatches) {
            (Some(path), ..) => load(path),
            (None, Some(name), Some(ranks), Some(microbatches)) => {
                build(&*schedule(name, Some(costs))?, ranks, self.chunks, microbatches)
            }
            _ => Err(Failure::Input("give --name, --ranks and --microbatches, or --plan".into())),
        }
    }
}

/// The flags for how transfers behave.
#[derive(clap::Args, Debug, Clone, Copy)]
pub(crate) struct TransferArguments {
    /// When a send is done: rendezvous (its receive is posted), buffered=K (K messages fit in a buffer) or unbounded.
    #[arg(long, default_value = "rendezvous", value_parser = transport)]
    transport: Transport,
    /// Sends and receives without a wait block their ranks.
    #[arg(long)]
    blocking: bool,
}

impl TransferArguments {
    pub(crate) fn options(self) -> SimulateOptions {
        SimulateOptions { transport: self.transport, overlap: !self.blocking }
    }
}

/// Builds a schedule's plan of a size; without a number of chunks, with the number that the schedule needs, or 2.
pub(crate) fn build(
    schedule: &dyn Schedule,
    ranks: usize,
    chunks: Option<usize>,
    microbatches: usize,
) -> Result<Plan, Failure> {
    let needed = if let Chunks::Exactly(n) = schedule.info().chunks { n } else { 2 };
    let chunks = chunks.unwrap_or(needed);
    // Three actions a stage and microbatch at most: F, I and W.
    let actions = ranks.saturating_mul(chunks).saturating_mul(microbatches).saturating_mul(3);
    if actions > MOST_ACTIONS {
        return Err(Failure::Refused(format!(
            "{ranks} ranks with {chunks} chunks and {microbatches} microbatches make about {actions} actions; \
             the limit is {MOST_ACTIONS}"
        )));
    }
    Ok(schedule.build(Size { ranks, chunks, microbatches })?)
}

/// The schedule with this name. The cost-driven schedule gets these costs.
pub(crate) fn schedule(name: &str, costs: Option<&CostArguments>) -> Result<Box<dyn Schedule>, Failure> {
    let schedule = by_name(name)?;
    match costs {
        Some(costs) if schedule.info().name == ZbAuto::default().info().name => Ok(Box::new(zb_auto(costs, None))),
        _ => Ok(schedule),
    }
}

/// The cost-driven schedule with the costs from the flags.
pub(crate) fn zb_auto(costs: &CostArguments, limit: Option<f64>) -> ZbAuto {
    ZbAuto { limit, ..ZbAuto::uniform(costs.forward, costs.input, costs.weight, costs.transfer) }
}

/// Reads a plan from a CSV file and names it after the file.
pub(crate) fn load(path: &Path) -> Result<Plan, Failure> {
    let name = path.file_stem().map_or("plan".into(), |stem| stem.to_string_lossy().into_owned());
    parse(path, |text| Plan::from_csv(name, text))
}
