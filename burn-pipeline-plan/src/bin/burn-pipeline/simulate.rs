//! `simulate`: simulates a plan under given costs, prints the report, and draws the timeline.

use crate::costs::CostArguments;
use crate::failure::Failure;
use crate::report::tracks;
use crate::source::{PlanArguments, TransferArguments};
use crate::values::write;
use burn_pipeline_plan::page::Page;
use burn_pipeline_plan::plan::{Action, Plan};
use burn_pipeline_plan::simulate::{Bounds, IdleCause, SimulateError, Simulation, simulate, unit_steps};
use burn_pipeline_plan::trace::{SvgOptions, Track, chrome};
use serde_json::{Value, json};
use std::io::Write;
use std::path::PathBuf;

/// The flags of `simulate`.
#[derive(clap::Args, Debug)]
pub(crate) struct Arguments {
    #[command(flatten)]
    source: PlanArguments,
    #[command(flatten)]
    costs: CostArguments,
    #[command(flatten)]
    transfers: TransferArguments,
    /// Print the report as one JSON object.
    #[arg(long)]
    json: bool,
    /// Let every action take one step instead (PyTorch's `_simulate_comms_compute`), and print the steps as CSV.
    /// Drawings show one second per step.
    #[arg(long, conflicts_with_all = ["json", "measured"])]
    unit_steps: bool,
    /// Write the timeline as a trace for Perfetto or chrome://tracing.
    #[arg(long, value_name = "OUT.json")]
    trace: Option<PathBuf>,
    /// Write the timeline as SVG.
    #[arg(long, value_name = "OUT.svg")]
    svg: Option<PathBuf>,
    /// Write the timeline, idle times and memory as one HTML page.
    #[arg(long, value_name = "OUT.html")]
    html: Option<PathBuf>,
    /// A measured trace of the same plan: the page shows it beside the prediction.
    #[arg(long, value_name = "TRACE.json", requires = "html")]
    measured: Option<PathBuf>,
    /// Draw the timeline as text of this many columns below the report.
    #[arg(long, value_name = "COLUMNS")]
    ascii: Option<usize>,
}

/// The most columns of an ASCII timeline.
const MOST_COLUMNS: usize = 100_000;

/// Simulates and reports. If the plan deadlocks, draws the steps before the deadlock.
pub(crate) fn run(arguments: &Arguments, out: &mut impl Write) -> Result<(), Failure> {
    let plan = arguments.source.plan(&arguments.costs)?;
    if arguments.unit_steps {
        return run_unit_steps(&plan, arguments, out);
    }
    let (plan, profile) = arguments.costs.over(plan)?;
    let outcome = simulate(&plan, &profile, &arguments.transfers.options());
    draw_deadlock(outcome.as_ref().err(), arguments, out)?;
    let (step, bounds) = (outcome?, Bounds::new(&plan, &profile)?);
    let track = step.track(title(&plan));
    draw(&track, arguments)?;
    if let Some(path) = &arguments.html {
        let page = arguments.costs.on(Page::new(title(&plan)).costs(profile.clone())).simulation("predicted", &step);
        let measured = arguments.measured.as_deref().map(tracks).transpose()?.unwrap_or_default();
        write(Some(path), || measured.iter().fold(page, Page::track).html())?;
    }
    if arguments.json {
        writeln!(out, "{}", report(&plan, &step, &bounds))?;
        return Ok(());
    }
    print(&plan, &step, &bounds, out)?;
    draw_ascii(&track, arguments, out)
}

/// Runs the unit-step simulation. It supports only transfers and single tasks, so the plan is lowered and fused actions
/// are split first.
fn run_unit_steps(plan: &Plan, arguments: &Arguments, out: &mut impl Write) -> Result<(), Failure> {
    let lowered = if plan.is_lowered() { plan.clone() } else { plan.without_idle().with_transfers()? };
    let split = |row: &Vec<Action>| row.iter().flat_map(|action| action.tasks().map(Action::from)).collect();
    let outcome = unit_steps(&lowered.with_rows(lowered.rows().iter().map(split).collect()));
    draw_deadlock(outcome.as_ref().err(), arguments, out)?;
    let steps = outcome?;
    let track = Track::of_steps(title(plan), &steps);
    draw(&track, arguments)?;
    draw_page(&track, arguments)?;
    write!(out, "{}", lowered.with_rows(steps).to_csv())?;
    draw_ascii(&track, arguments, out)
}

/// If the error is a deadlock, draws the actions before it.
fn draw_deadlock(error: Option<&SimulateError>, arguments: &Arguments, out: &mut impl Write) -> Result<(), Failure> {
    let Some(SimulateError::Deadlock { so_far, .. }) = error else { return Ok(()) };
    let track = Track { name: format!("{}, until the deadlock", so_far.name), ..Track::clone(so_far) };
    draw(&track, arguments)?;
    draw_page(&track, arguments)?;
    draw_ascii(&track, arguments, out)
}

fn draw(track: &Track, arguments: &Arguments) -> Result<(), Failure> {
    write(arguments.trace.as_deref(), || chrome(std::slice::from_ref(track)))?;
    write(arguments.svg.as_deref(), || track.svg(&SvgOptions::fitting(track)))
}

/// Writes a page of a track without costs.
fn draw_page(track: &Track, arguments: &Arguments) -> Result<(), Failure> {
    write(arguments.html.as_deref(), || Page::new(&track.name).track(track).html())
}

fn draw_ascii(track: &Track, arguments: &Arguments, out: &mut impl Write) -> Result<(), Failure> {
    arguments.ascii.map_or(Ok(()), |columns| Ok(write!(out, "\n{}", track.ascii(columns.min(MOST_COLUMNS)))?))
}

fn title(plan: &Plan) -> String {
    format!("{}, {} ranks, {} microbatches", plan.name(), plan.ranks(), plan.total_microbatches())
}

fn report(plan: &Plan, step: &Simulation, bounds: &Bounds) -> Value {
    let rank = |rank: &burn_pipeline_plan::simulate::RankReport| {
        let idle: serde_json::Map<String, Value> =
            IdleCause::SIMULATED.into_iter().map(|cause| (cause.to_string(), json!(rank.idle_of(cause)))).collect();
        json!({
            "start": rank.start, "end": rank.end, "busy": rank.busy, "occupied": rank.occupied, "idle": idle,
            "peak_activations": rank.peak_activations, "peak_bytes": rank.peak_bytes,
        })
    };
    json!({
        "name": plan.name(),
        "stages": plan.stages(),
        "microbatches": plan.total_microbatches(),
        "makespan": step.makespan,
        "span": step.span,
        "bubble_rate_span": step.bubble_rate_span(),
        "bubble_rate_makespan": step.bubble_rate_makespan(),
        "peak_activations": step.peak_activations(),
        "peak_bytes": step.peak_bytes(),
        "bounds": {
            "makespan": bounds.makespan(), "critical_path": bounds.critical_path,
            "busiest_rank": bounds.busiest_rank, "memory_bubble": bounds.memory_bubble,
        },
        "ranks": step.ranks.iter().map(rank).collect::<Vec<_>>(),
    })
}

fn print(plan: &Plan, step: &Simulation, bounds: &Bounds, out: &mut impl Write) -> Result<(), Failure> {
    writeln!(out, "{}", title(plan))?;
    writeln!(out, "makespan            {:.4}  (no order can beat {:.4})", step.makespan, bounds.makespan())?;
    writeln!(out, "longest span        {:.4}", step.span)?;
    writeln!(out, "bubble of span      {:.2} %", 100.0 * step.bubble_rate_span())?;
    writeln!(out, "bubble of makespan  {:.2} %", 100.0 * step.bubble_rate_makespan())?;
    writeln!(out, "peak activations    {:.4} rank-microbatches", step.peak_activations())?;
    if let Some(bubble) = bounds.memory_bubble {
        writeln!(
            out,
            "memory bubble       {bubble:.4} idle at least on rank 0, for the forwards that it warms up with"
        )?;
    }
    write!(out, "\n{:>5} {:>10} {:>10} {:>10} {:>8}  idle:", "rank", "start", "end", "busy", "peak")?;
    for cause in IdleCause::SIMULATED {
        write!(out, " {cause:>10}")?;
    }
    writeln!(out)?;
    for (rank, report) in step.ranks.iter().enumerate() {
        let (start, end, busy, peak) = (report.start, report.end, report.busy, report.peak_activations);
        write!(out, "{rank:>5} {start:>10.4} {end:>10.4} {busy:>10.4} {peak:>8.3}       ")?;
        for cause in IdleCause::SIMULATED {
            write!(out, " {:>10.4}", report.idle_of(cause))?;
        }
        writeln!(out)?;
    }
    Ok(())
}
