//! `check`: proves that a plan from a file can run.

use crate::failure::Failure;
use crate::source::load;
use crate::values::{amount, transport};
use burn_pipeline_plan::cost::{Profile, UniformCosts, VocabularyCost};
use burn_pipeline_plan::plan::{CheckError, CheckOptions, Plan, Transport};
use burn_pipeline_plan::simulate::{SimulateOptions, simulate};
use std::io::Write;
use std::path::PathBuf;

/// The flags of `check`.
#[derive(clap::Args, Debug)]
pub(crate) struct Arguments {
    /// The plan as CSV: one row per rank, one cell per action, empty cells for idle slots.
    #[arg(value_name = "FILE.csv")]
    file: PathBuf,
    /// Require that the file has sends and receives. Without this flag, a plan without them is checked as it is, and
    /// again with sends and receives inserted.
    #[arg(long)]
    lowered: bool,
    /// When a send is done: rendezvous (its receive is posted), buffered=K (K messages fit in a buffer) or unbounded.
    #[arg(long, default_value = "rendezvous", value_parser = transport)]
    transport: Transport,
    /// Refuse a plan in which a rank holds more activations than this, in rank-microbatches (1 = one microbatch on
    /// all of a rank's stages).
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = amount)]
    cap: Option<f64>,
    /// For a refused plan, print all steps of all ranks with the fault's step marked, not only the steps around it.
    #[arg(long)]
    grid: bool,
}

/// Prints a summary of the checked plan.
pub(crate) fn run(arguments: &Arguments, out: &mut impl Write) -> Result<(), Failure> {
    let plan = load(&arguments.file)?;
    let crosses = plan.placement().all_stages().any(|stage| plan.placement().crosses_after(stage));
    if arguments.lowered && crosses && !plan.is_lowered() {
        return Err(Failure::Refused(format!(
            "{} has no sends and receives; omit --lowered, or lower the plan first",
            arguments.file.display()
        )));
    }
    let options = CheckOptions { transport: arguments.transport, activation_cap: arguments.cap, ..Default::default() };
    let lowered = plan.is_lowered();
    let checked = |plan: Plan| {
        let whole = arguments.grid.then(|| plan.clone());
        plan.check(&options).map_err(|error| refused(&error, whole.as_ref()))
    };
    let plan = checked(plan)?;
    let runnable = if lowered { plan } else { checked(plan.plan().without_idle().with_transfers()?)? };
    summary(runnable.plan(), lowered, arguments.transport, out)
}

/// The error. With `whole`, the whole grid replaces the excerpt around the fault.
fn refused(error: &CheckError, whole: Option<&Plan>) -> Failure {
    let text = error.to_string();
    let (Some(plan), Some((rank, step))) = (whole, error.place()) else { return Failure::Refused(text) };
    let message = text.trim_end_matches(&plan.excerpt(rank, step)).trim_end();
    Failure::Refused(format!("{message}\n{}", plan.grid_marked(step).trim_end_matches('\n')))
}

fn summary(plan: &Plan, lowered: bool, transport: Transport, out: &mut impl Write) -> Result<(), Failure> {
    let profile = Profile::uniform(plan.placement(), UniformCosts::new(1.0, 1.0, 1.0))?;
    let profile = profile.with_vocabulary(VocabularyCost::default())?;
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
