//! Where a plan comes from: a family and a size, or a CSV file.

use crate::costs::CostArguments;
use crate::failure::Failure;
use burn_pipeline_plan::plan::{Plan, Transport};
use burn_pipeline_plan::schedule::{Chunks, MemoryLimit, Schedule, Size, ZbAuto, by_name};
use std::path::{Path, PathBuf};

/// Plans above this many actions are refused before they eat the machine's memory.
const MOST_ACTIONS: usize = 100_000_000;

/// A size whose chunks may be left to the family.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) ranks: usize,
    pub(crate) chunks: Option<usize>,
    pub(crate) microbatches: usize,
}

/// The chunks a rank that a family gets when none are asked for: what it needs, else 2.
pub(crate) fn default_chunks(chunks: Chunks) -> usize {
    if let Chunks::Exactly(n) = chunks { n } else { 2 }
}

/// The flags that say which plan: a family and a size, or a file.
#[derive(clap::Args, Debug)]
#[command(group(clap::ArgGroup::new("source").required(true).args(["name", "plan"])))]
pub(crate) struct PlanArguments {
    /// A family, see `schedules`; with --ranks and --microbatches.
    #[arg(long, requires = "ranks", requires = "microbatches")]
    name: Option<String>,
    /// Ranks (devices).
    #[arg(long, value_name = "P", requires = "name")]
    ranks: Option<usize>,
    /// Stages a rank [default: what the family needs, else 2].
    #[arg(long, value_name = "V", requires = "name")]
    chunks: Option<usize>,
    /// Microbatches a step.
    #[arg(long, value_name = "M", requires = "name")]
    microbatches: Option<usize>,
    /// A plan from a file instead, lowered or not, with waits or without.
    #[arg(long, value_name = "FILE.csv")]
    plan: Option<PathBuf>,
}

impl PlanArguments {
    /// Builds or reads the plan; a family that is driven by costs gets these.
    pub(crate) fn plan(&self, costs: &CostArguments) -> Result<Plan, Failure> {
        match (self, &self.plan) {
            (_, Some(path)) => load(path),
            (
                &PlanArguments {
                    name: Some(ref name),
                    ranks: Some(ranks),
                    microbatches: Some(microbatches),
                    chunks,
                    ..
                },
                _,
            ) => build(&*family(name, Some(costs))?, Wanted { ranks, chunks, microbatches }),
            _ => Err(Failure::Input("give --name, --ranks and --microbatches, or --plan".into())),
        }
    }
}

/// Builds a family at a size.
pub(crate) fn build(family: &dyn Schedule, wanted: Wanted) -> Result<Plan, Failure> {
    let Wanted { ranks, chunks, microbatches } = wanted;
    let chunks = chunks.unwrap_or_else(|| default_chunks(family.family().chunks));
    // Three actions a stage and microbatch at most: F, I and W.
    let actions = ranks.saturating_mul(chunks).saturating_mul(microbatches).saturating_mul(3);
    if actions > MOST_ACTIONS {
        return Err(Failure::Refused(format!(
            "{ranks} ranks with {chunks} chunks and {microbatches} microbatches make about {actions} actions; at most {MOST_ACTIONS} are built here"
        )));
    }
    Ok(family.build(Size { ranks, chunks, microbatches })?)
}

/// The family of that name; the cost-driven one gets the costs to be driven by.
pub(crate) fn family(name: &str, costs: Option<&CostArguments>) -> Result<Box<dyn Schedule>, Failure> {
    let family = by_name(name)?;
    match costs {
        Some(costs) if family.family().name == ZbAuto::default().family().name => {
            Ok(Box::new(zb_auto(costs, MemoryLimit::TimesRanks(1.0))))
        }
        _ => Ok(family),
    }
}

/// The cost-driven family under the costs of the flags.
pub(crate) fn zb_auto(costs: &CostArguments, limit: MemoryLimit) -> ZbAuto {
    ZbAuto { limit, ..ZbAuto::uniform(costs.forward, costs.input, costs.weight, costs.transfer) }
}

/// Reads a text file.
pub(crate) fn read(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(|error| Failure::Input(format!("cannot read {}: {error}", path.display())))
}

/// Writes a text file.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text).map_err(|error| Failure::Input(format!("cannot write {}: {error}", path.display())))
}

/// Reads a plan from a CSV file; its name is the file's.
pub(crate) fn load(path: &Path) -> Result<Plan, Failure> {
    let name = path.file_stem().map_or("plan".into(), |stem| stem.to_string_lossy().into_owned());
    let text = read(path)?;
    Plan::from_csv(name, &text).map_err(|error| Failure::Input(format!("{}: {error}", path.display())))
}

/// Parses `rendezvous`, `buffered=K` or `unbounded`.
pub(crate) fn transport(text: &str) -> Result<Transport, String> {
    match text.split_once('=') {
        None if text == "rendezvous" => Ok(Transport::Rendezvous),
        None if text == "unbounded" => Ok(Transport::Unbounded),
        Some(("buffered", room)) => {
            room.parse().map(Transport::Buffered).map_err(|_| format!("`{room}` is not a number of messages"))
        }
        _ => Err("write rendezvous, buffered=K or unbounded".into()),
    }
}
