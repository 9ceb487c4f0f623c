//! `check`: prove that a plan from a file can be run.

use crate::costs::seconds;
use crate::failure::Failure;
use crate::source::{load, transport};
use burn_pipeline_plan::cost::{Profile, UniformCosts};
use burn_pipeline_plan::pass::{insert_transfers, strip_idle};
use burn_pipeline_plan::plan::{CheckOptions, Plan, Transport};
use burn_pipeline_plan::simulate::{SimulateOptions, simulate};
use std::io::Write;
use std::path::PathBuf;

/// The flags of `check`.
#[derive(clap::Args, Debug)]
pub(crate) struct Arguments {
    /// The plan: one row a rank, one cell an action, an empty cell for an idle slot.
    #[arg(value_name = "FILE.csv")]
    file: PathBuf,
    /// The file has to hold the sends and receives. Without it, a plan of computations alone is checked as it stands
    /// and once more with the transfers that this library would insert.
    #[arg(long)]
    lowered: bool,
    /// What a send waits for: rendezvous, buffered=K or unbounded.
    #[arg(long, default_value = "rendezvous", value_parser = transport)]
    transport: Transport,
    /// The most activations that a rank may hold, in rank-microbatches.
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = seconds)]
    cap: Option<f64>,
}

/// Prints a summary of the checked plan.
pub(crate) fn run(arguments: &Arguments, out: &mut impl Write) -> Result<(), Failure> {
    let plan = load(&arguments.file)?;
    let crosses = plan.placement().all_stages().any(|stage| plan.placement().crosses_after(stage));
    if arguments.lowered && crosses && !plan.is_lowered() {
        return Err(Failure::Refused(format!(
            "{} holds no sends and receives; leave --lowered out, or lower it first",
            arguments.file.display()
        )));
    }
    let options = CheckOptions { transport: arguments.transport, activation_cap: arguments.cap, ..Default::default() };
    let lowered = plan.is_lowered();
    let checked = plan.check(&options)?;
    let runnable = if lowered { checked } else { insert_transfers(&strip_idle(checked.plan()))?.check(&options)? };
    summary(runnable.plan(), lowered, arguments.transport, out)
}

fn summary(plan: &Plan, lowered: bool, transport: Transport, out: &mut impl Write) -> Result<(), Failure> {
    let profile = Profile::uniform(plan.placement(), UniformCosts::new(1.0, 1.0, 1.0))?;
    let step = simulate(plan, &profile, &SimulateOptions { transport, ..Default::default() })?;
    let actions = plan.rows().iter().flatten().filter(|action| !action.is_idle()).count();
    let transfers = plan.rows().iter().flatten().filter(|a| a.tasks().any(|t| t.op().is_transfer())).count();
    writeln!(out, "{}: ok under {transport}", plan.name())?;
    writeln!(
        out,
        "  {} ranks, {} stages ({} placement), {} microbatches",
        plan.ranks(),
        plan.placement().slots(),
        plan.placement().kind(),
        plan.total_microbatches()
    )?;
    let written = if lowered { "as written" } else { "inserted" };
    writeln!(out, "  {actions} actions, {transfers} of them sends and receives, {written}")?;
    writeln!(out, "  peak of activations: {} rank-microbatches", step.peak_activations())?;
    Ok(())
}
