//! `overlap`: runs the overlap passes on a plan, prints their reports, and writes the plan.

use crate::costs::CostArguments;
use crate::failure::Failure;
use crate::source::{PlanArguments, TransferArguments};
use crate::values::{amount, write};
use burn_pipeline_plan::pass::overlap::{OverlapOptions, OverlapPass};
use burn_pipeline_plan::plan::Plan;
use burn_pipeline_plan::simulate::{SimulateOptions, simulate};
use serde_json::json;
use std::io::Write;
use std::path::PathBuf;

/// The flags of `overlap`.
#[derive(clap::Args, Debug)]
pub(crate) struct Arguments {
    #[command(flatten)]
    source: PlanArguments,
    #[command(flatten)]
    costs: CostArguments,
    #[command(flatten)]
    transfers: TransferArguments,
    /// Insert UNSHARD and RESHARD first. A rank keeps at most this many stages gathered.
    #[arg(long, value_name = "STAGES")]
    shard: Option<usize>,
    #[command(flatten)]
    overlap: OverlapArguments,
    /// Make only the first N of all moves, to find the move after which numbers are wrong.
    #[arg(long, value_name = "N")]
    moves: Option<usize>,
    /// Print the reports as one JSON object: for each start, what moved with it, what hides it, and what stopped it.
    #[arg(long)]
    json: bool,
    /// Write the resulting plan as CSV.
    #[arg(long, value_name = "OUT.csv")]
    out: Option<PathBuf>,
}

/// The flags of the passes, for `overlap` and `plan`.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Overlap of communication with computation")]
pub(crate) struct OverlapArguments {
    /// The passes to run, in order: order-communication, sink-waits, raise-communication, reorder-compute,
    /// sink-waits-iteratively, reorder-communication.
    #[arg(long, value_name = "PASS,..", value_delimiter = ',', value_parser = pass,
          default_values_t = OverlapPass::USUAL)]
    pub(crate) passes: Vec<OverlapPass>,
    /// Bytes by which a rank's peak may grow.
    #[arg(long, value_name = "BYTES", default_value_t = 0.0, value_parser = amount)]
    extra_bytes: f64,
    /// The share of its peak by which a rank's peak may grow in addition: 0.1 for a tenth.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = amount)]
    extra_share: f64,
    /// The most computations that a transfer or a wait may move past.
    #[arg(long, value_name = "CELLS", default_value_t = OverlapOptions::default().reach)]
    reach: usize,
    /// The most actions that may move together with a transfer or a wait.
    #[arg(long, value_name = "CELLS", default_value_t = OverlapOptions::default().group)]
    group: usize,
    /// How much longer than a transfer the computation beside it should be, as a share of the transfer's seconds.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = amount)]
    margin: f64,
    /// Do not use time estimates: move as far as order, data, memory and reach allow.
    #[arg(long)]
    no_estimates: bool,
}

impl OverlapArguments {
    pub(crate) fn options(&self, simulate: SimulateOptions) -> OverlapOptions {
        OverlapOptions {
            simulate,
            extra_bytes: self.extra_bytes,
            extra_share: self.extra_share,
            reach: self.reach,
            group: self.group,
            margin: self.margin,
            estimates: !self.no_estimates,
        }
    }
}

/// A pass by its name.
fn pass(text: &str) -> Result<OverlapPass, String> {
    let names = || OverlapPass::ALL.map(OverlapPass::name).join(", ");
    OverlapPass::from_name(text).ok_or_else(|| format!("write one of {}", names()))
}

/// Runs the passes and prints their reports.
pub(crate) fn run(arguments: &Arguments, out: &mut impl Write) -> Result<(), Failure> {
    let (plan, profile) = arguments.costs.over(arguments.source.plan(&arguments.costs)?)?;
    let plan = lowered(arguments, plan)?;
    let options = arguments.overlap.options(arguments.transfers.options());
    let before = simulate(&plan, &profile, &options.simulate)?;
    let mut after = plan.overlap(&profile, &arguments.overlap.passes, &options)?;
    if let Some(moves) = arguments.moves {
        let unmoved = plan.overlap(&profile, &[], &options)?.plan;
        let (_, all) = unmoved.first_moves(&after.plan, usize::MAX)?;
        let (moved, made) = unmoved.first_moves(&after.plan, moves)?;
        if !arguments.json {
            writeln!(out, "{made} of {all} moves are made; the tables list all")?;
        }
        after.plan = moved;
    }
    let end = simulate(&after.plan, &profile, &options.simulate)?;
    let (seconds, bytes) = ((before.makespan, end.makespan), (before.peak_bytes(), end.peak_bytes()));
    if arguments.json {
        let name = plan.name();
        writeln!(
            out,
            "{}",
            json!({ "name": name, "makespan": seconds, "peak_bytes": bytes, "passes": after.reports })
        )?;
    } else {
        after.reports.iter().try_for_each(|report| writeln!(out, "{report}"))?;
        writeln!(
            out,
            "{}: step {:.4} s -> {:.4} s, peak {:.0} -> {:.0} bytes",
            plan.name(),
            seconds.0,
            seconds.1,
            bytes.0,
            bytes.1
        )?;
    }
    write(arguments.out.as_deref(), || after.plan.to_csv())
}

/// The plan with sends and receives, and with UNSHARD and RESHARD on request.
fn lowered(arguments: &Arguments, plan: Plan) -> Result<Plan, Failure> {
    let plan = arguments.shard.map_or(Ok(plan.clone()), |active| plan.with_unshard(active))?;
    if plan.is_lowered() { Ok(plan) } else { Ok(plan.without_idle().with_transfers()?) }
}
