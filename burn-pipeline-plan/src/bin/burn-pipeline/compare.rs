//! `compare`: compares all schedules under the same costs.
//!
//! 1. Every schedule is built with each number of chunks from the flags, or with its own number if that is fixed. The
//!    cost-driven schedule is built with memory for `p` and for `2p` activations.
//! 2. The plans are simulated. Plans with a peak above the cap are left out.
//! 3. The others are sorted by makespan. A star marks the Pareto front of makespan and peak.

use crate::costs::CostArguments;
use crate::failure::Failure;
use crate::source::{build, zb_auto};
use crate::values::{amount, parse, write};
use burn_pipeline_plan::cost::Profile;
use burn_pipeline_plan::page::{Choice, Choices, Page};
use burn_pipeline_plan::schedule::{Chunks, Schedule, ZbAuto, all};
use burn_pipeline_plan::simulate::{SimulateOptions, Simulation, simulate};
use serde_json::json;
use std::io::Write;
use std::path::PathBuf;

/// The flags of `compare`.
#[derive(clap::Args, Debug)]
pub(crate) struct Arguments {
    /// Number of ranks (devices).
    #[arg(long, value_name = "P")]
    ranks: usize,
    /// Number of microbatches per step.
    #[arg(long, value_name = "M")]
    microbatches: usize,
    /// Numbers of stages per rank to compare, for schedules that accept any number.
    #[arg(long, value_name = "V", value_delimiter = ',', default_value = "2")]
    chunks: Vec<usize>,
    #[command(flatten)]
    costs: CostArguments,
    /// Leave out plans in which a rank holds more activations than this, in rank-microbatches (1 = one microbatch on
    /// all of a rank's stages).
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = amount)]
    cap: Option<f64>,
    /// Write the table and its Pareto front, and the fastest schedule's timeline, as one HTML page.
    #[arg(long, value_name = "OUT.html")]
    html: Option<PathBuf>,
    /// Print the result as one JSON object.
    #[arg(long)]
    json: bool,
}

/// A schedule with a number of chunks, built and simulated.
#[derive(Debug)]
struct Candidate {
    name: String,
    chunks: usize,
    makespan: f64,
    peak: f64,
    best: bool,
    step: Simulation,
}

/// An unusable schedule, and the reason.
#[derive(Debug)]
struct Refusal {
    name: String,
    chunks: usize,
    reason: String,
}

/// Prints the table and the unusable schedules.
pub(crate) fn run(arguments: &Arguments, out: &mut impl Write) -> Result<(), Failure> {
    if let Some(path) = &arguments.costs.profile {
        // Report an unreadable profile once, not for each schedule.
        parse(path, Profile::from_json)?;
    }
    let (mut candidates, mut refusals) = (Vec::new(), Vec::new());
    for (name, schedule) in schedules(arguments) {
        for chunks in chunks_of(&*schedule, &arguments.chunks) {
            match candidate(&name, &*schedule, chunks, arguments) {
                Ok(candidate) => candidates.push(candidate),
                Err(failure) => refusals.push(Refusal { name: name.clone(), chunks, reason: failure.to_string() }),
            }
        }
    }
    candidates.sort_by(|a, b| a.makespan.total_cmp(&b.makespan).then(a.peak.total_cmp(&b.peak)));
    mark_best(&mut candidates);
    write(arguments.html.as_deref(), || page(&candidates, &refusals, arguments).html())?;
    match arguments.json {
        true => print_json(&candidates, &refusals, out)?,
        false => print(&candidates, &refusals, out)?,
    }
    if candidates.is_empty() {
        return Err(Failure::Refused("no schedule can be used at this size and under this cap".into()));
    }
    Ok(())
}

/// The page: the fastest schedule's timeline, and the table as a picture.
fn page(candidates: &[Candidate], refusals: &[Refusal], arguments: &Arguments) -> Page {
    let name = |name: &str, chunks: usize| format!("{name}, {chunks} chunks a rank");
    let choice =
        |c: &Candidate| Choice { name: name(&c.name, c.chunks), seconds: c.makespan, peak: c.peak, pareto: c.best };
    let dropped = refusals.iter().map(|refusal| (name(&refusal.name, refusal.chunks), refusal.reason.clone()));
    let (usable, dropped) = (candidates.iter().map(choice).collect(), dropped.collect());
    let title = format!("All schedules on {} ranks, {} microbatches", arguments.ranks, arguments.microbatches);
    let page = Page::new(title).choices(Choices { unit: "rank-microbatches".into(), usable, dropped });
    match candidates.first() {
        Some(fastest) => arguments.costs.on(page).simulation(&fastest.name, &fastest.step),
        None => page,
    }
}

/// All schedules with their names; the cost-driven schedule once for each memory limit.
fn schedules(arguments: &Arguments) -> Vec<(String, Box<dyn Schedule>)> {
    let auto = ZbAuto::default().info().name;
    let mut schedules: Vec<(String, Box<dyn Schedule>)> = Vec::new();
    for schedule in all() {
        let name = schedule.info().name;
        if name != auto || arguments.costs.profile.is_some() {
            schedules.push((name.into(), schedule));
            continue;
        }
        for times in [1.0, 2.0] {
            let limited = zb_auto(&arguments.costs, Some(times * arguments.ranks as f64));
            schedules.push((format!("{name} {times}p"), Box::new(limited)));
        }
    }
    schedules
}

fn chunks_of(schedule: &dyn Schedule, asked: &[usize]) -> Vec<usize> {
    if let Chunks::Exactly(n) = schedule.info().chunks { vec![n] } else { asked.to_vec() }
}

fn candidate(name: &str, schedule: &dyn Schedule, chunks: usize, arguments: &Arguments) -> Result<Candidate, Failure> {
    let (ranks, microbatches) = (arguments.ranks, arguments.microbatches);
    let plan = build(schedule, ranks, Some(chunks), microbatches)?;
    if !plan.has_backward() {
        return Err(Failure::Refused("it has no backwards, so it is not a training step".into()));
    }
    let (plan, profile) = arguments.costs.over(plan)?;
    let step = simulate(&plan, &profile, &SimulateOptions::default())?;
    let peak = step.peak_activations();
    if let Some(cap) = arguments.cap.filter(|&cap| peak > cap) {
        return Err(Failure::Refused(format!("it holds {peak} rank-microbatches, above the cap of {cap}")));
    }
    Ok(Candidate { name: name.to_owned(), chunks, makespan: step.makespan, peak, best: false, step })
}

/// Marks the Pareto front of makespan and peak.
fn mark_best(candidates: &mut [Candidate]) {
    // Sums of the same numbers in another order differ in their last bits. They count as equal.
    let same = |a: f64, b: f64| (a - b).abs() <= 1e-9 * a.abs().max(b.abs());
    let front: Vec<bool> = candidates
        .iter()
        .map(|c| {
            let beats = |o: &Candidate| {
                let (faster, leaner) = (o.makespan < c.makespan, o.peak < c.peak);
                let (no_slower, no_fatter) = (faster || same(o.makespan, c.makespan), leaner || same(o.peak, c.peak));
                let strictly = (faster && !same(o.makespan, c.makespan)) || (leaner && !same(o.peak, c.peak));
                no_slower && no_fatter && strictly
            };
            !candidates.iter().any(beats)
        })
        .collect();
    candidates.iter_mut().zip(front).for_each(|(candidate, best)| candidate.best = best);
}

fn print(candidates: &[Candidate], refusals: &[Refusal], out: &mut impl Write) -> Result<(), Failure> {
    let [name, chunks, makespan] = ["schedule", "chunks", "makespan"];
    writeln!(
        out,
        "  {name:<22} {chunks:>6} {makespan:>12} {:>12} {:>12} {:>10}",
        "bubble/span", "bubble/step", "peak"
    )?;
    for c in candidates {
        let star = if c.best { '*' } else { ' ' };
        let (span, step) = (100.0 * c.step.bubble_rate_span(), 100.0 * c.step.bubble_rate_makespan());
        let (name, chunks, makespan, peak) = (&c.name, c.chunks, c.makespan, c.peak);
        writeln!(out, "{star} {name:<22} {chunks:>6} {makespan:>12.4} {span:>10.2} % {step:>10.2} % {peak:>10.3}")?;
    }
    writeln!(out, "\n* nothing is both faster and leaner (peak activations in rank-microbatches)")?;
    if !refusals.is_empty() {
        writeln!(out, "\nnot used:")?;
    }
    for Refusal { name, chunks, reason } in refusals {
        writeln!(out, "  {name:<22} {chunks:>6}  {reason}")?;
    }
    Ok(())
}

fn print_json(candidates: &[Candidate], refusals: &[Refusal], out: &mut impl Write) -> Result<(), Failure> {
    let candidate = |c: &Candidate| {
        json!({
            "name": c.name, "chunks": c.chunks, "makespan": c.makespan,
            "bubble_rate_span": c.step.bubble_rate_span(), "bubble_rate_makespan": c.step.bubble_rate_makespan(),
            "peak_activations": c.peak, "pareto": c.best,
        })
    };
    let refusal = |r: &Refusal| json!({ "name": r.name, "chunks": r.chunks, "reason": r.reason });
    let report = json!({
        "schedules": candidates.iter().map(candidate).collect::<Vec<_>>(),
        "refused": refusals.iter().map(refusal).collect::<Vec<_>>(),
    });
    writeln!(out, "{report}")?;
    Ok(())
}
