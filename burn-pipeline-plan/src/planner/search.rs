//! The search: every candidate on every layout, priced in parallel.
//!
//! Guarantees: the same request gives the same report, whatever the number of threads. The best plan is no slower than
//! any candidate that fits.
//!
//! 1. Layouts are workloads x shapes x cuts ([`super::layout`]). On each layout, every schedule of the catalogue that
//!    fits its placement and a quickly synthesised schedule are priced, with every choice of recomputation and passes.
//! 2. For the best few candidates, the same is done on other cuts with about the same load of the busiest rank
//!    ([`super::alike`]).
//! 3. On the layouts of the best few candidates so far, schedules are synthesised with full effort. The best plans of
//!    the catalogue there are among their starting points.
//! 4. The overlap passes are tried on the best few candidates.
//! 5. Steps 1 to 4 run separately for each size of tensor-parallel group, with and without a parallel vocabulary, and
//!    for the few most promising layouts with groups of different sizes ([`super::mixed`]). They do not share a budget,
//!    so more choices never give a slower plan.
//! 6. Unusable candidates are dropped with the reason; the others are ranked.

use super::alike::alike;
use super::bound::bound;
use super::error::{DropReason, PlannerError};
use super::job::{Job, Maker, build, quick};
use super::layout::{Layout, layouts};
use super::mixed::mixed;
use super::passes::PassChoice;
use super::report::{Candidate, Dropped, PlannerReport, Strategy, TimeBreakdown, faster_without_cap, sort_and_mark};
use super::request::{Recompute, Request};
use super::schedules::schedules;
use super::synthesis::Synthesis;
use super::unpipelined::whole_model;
use crate::plan::Plan;
use rayon::prelude::*;

/// The number of layouts on which a schedule is synthesised with full effort.
const FINALISTS: usize = 3;

/// The number of catalogue plans from which each of these syntheses starts.
const SEEDS: usize = 2;

/// The number of candidates on which the overlap passes are tried: first if transfers overlap with computations, second
/// if they block. Blocking transfers leave more to gain, and the ranking before the passes predicts the ranking after
/// them less well.
const OVERLAPPED: [usize; 2] = [3, 12];

/// A usable candidate, and the job that makes it again.
struct Found<'a> {
    candidate: Candidate,
    job: Job<'a>,
}

/// Finds the best plan for a request.
///
/// # Errors
/// Returns [`PlannerError`] if the request is not valid, or no candidate fits.
///
/// ```
/// use burn_pipeline_plan::cost::{Layer, Layers, LinkCost, LinkCosts};
/// use burn_pipeline_plan::planner::{Request, Workload, best_plan};
///
/// let block = Layer { output_bytes: 1e6, ..Layer::new('A').with_seconds(0.01, 0.01, 0.01) };
/// let workload = Workload::new(8, Layers::new(vec![block; 8])?);
/// let links = LinkCosts { default: LinkCost { latency: 1e-4, bandwidth: Some(1e10) }, ..LinkCosts::default() };
/// let report = best_plan(&Request::new(vec![workload], 2, links))?;
/// assert!(report.best.seconds < 1.05 * report.bound);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn best_plan(request: &Request) -> Result<PlannerReport, PlannerError> {
    request.check()?;
    let mut reports = Vec::new();
    for (members, part) in request.parts()? {
        reports.push(best_of(&part).map(|report| report.held_by(&[members])));
    }
    for part in mixed(request)? {
        let report = best_on(&part.request, &[part.layout], Vec::new(), &[], false);
        reports.push(report.map(|report| report.held_by(&part.sizes)));
    }
    let (found, refused): (Vec<_>, Vec<_>) = reports.into_iter().partition(Result::is_ok);
    let best = found.into_iter().flatten().reduce(PlannerReport::joined);
    best.ok_or_else(|| refused.into_iter().find_map(Result::err).unwrap_or(PlannerError::NoWorkload))
}

/// The best plan of one part of a request.
fn best_of(request: &Request) -> Result<PlannerReport, PlannerError> {
    let (layouts, dropped) = layouts(request);
    let unpipelined = if request.unpipelined { whole_models(request) } else { Vec::new() };
    best_on(request, &layouts, dropped, &unpipelined, true)
}

/// The best plan on these layouts and, if `cuts`, on other cuts of them.
fn best_on(
    request: &Request,
    layouts: &[Layout],
    mut dropped: Vec<Dropped>,
    unpipelined: &[(Layout, Plan, Strategy)],
    cuts: bool,
) -> Result<PlannerReport, PlannerError> {
    let mut jobs = Vec::new();
    for (layout, plan, strategy) in unpipelined {
        jobs.extend(variants(request, layout, &Maker::Given(plan.clone(), strategy.clone())));
    }
    jobs.extend(layouts.iter().flat_map(|layout| all_jobs(request, layout)));
    let mut found = price_all(request, jobs, &mut dropped);
    let cut_otherwise = if cuts { cut_otherwise(request, layouts, &found) } else { Vec::new() };
    let jobs = cut_otherwise.iter().flat_map(|layout| all_jobs(request, layout)).collect();
    found.extend(price_all(request, jobs, &mut dropped));
    if let Some(effort) = request.synthesis {
        let finals = synthesised(request, &found, effort);
        found.extend(price_all(request, finals, &mut dropped));
    }
    let overlapped = price_all(request, overlapped(request, &found), &mut dropped);
    let best = found.iter().map(|f| f.candidate.seconds).fold(f64::INFINITY, f64::min);
    found.extend(overlapped.into_iter().filter(|f| f.candidate.seconds < best));
    report(request, found, dropped)
}

/// The layouts and plans without a pipeline, for every workload whose layers make a valid profile.
fn whole_models(request: &Request) -> Vec<(Layout, Plan, Strategy)> {
    let mut strategies = vec![(1, Strategy::OneDevice)];
    if request.ranks > 1 {
        strategies.push((request.ranks, Strategy::DataParallel));
    }
    let mut models = Vec::new();
    let whole = |&workload: &usize| request.workloads[workload].vocabulary.is_none();
    for workload in (0..request.workloads.len()).filter(whole) {
        for (replicas, strategy) in &strategies {
            let model = whole_model(request, workload, *replicas).ok();
            models.extend(model.map(|(layout, plan)| (layout, plan, strategy.clone())));
        }
    }
    models
}

/// Every schedule and the quick synthesis on a layout.
fn all_jobs<'a>(request: &Request, layout: &'a Layout) -> Vec<Job<'a>> {
    let schedules = (0..schedules(request, layout).len()).map(Maker::Schedule);
    let mut jobs: Vec<_> = schedules.flat_map(|maker| variants(request, layout, &maker)).collect();
    jobs.extend(quickly_synthesised(request, layout));
    jobs
}

/// Layouts with other cuts than those of the best few candidates, without those that were priced already.
fn cut_otherwise(request: &Request, layouts: &[Layout], found: &[Found<'_>]) -> Vec<Layout> {
    let mut order: Vec<_> = found.iter().filter(|f| f.job.layout.partition.stages() > 1).collect();
    order.sort_by(|a, b| a.candidate.seconds.total_cmp(&b.candidate.seconds));
    let mut best: Vec<&Layout> = Vec::new();
    for found in order {
        if best.len() < FINALISTS && !best.iter().any(|layout| std::ptr::eq(*layout, found.job.layout)) {
            best.push(found.job.layout);
        }
    }
    let mut other: Vec<Layout> = Vec::new();
    // Layers between embedding and head are mostly of one kind, so other cuts gain little if the vocabulary is
    // parallel.
    best.retain(|layout| layout.profile.vocabulary().is_none());
    for layout in best.into_iter().flat_map(|layout| alike(request, layout)) {
        if !layouts.iter().chain(&other).any(|priced| priced.is(&layout)) {
            other.push(layout);
        }
    }
    other
}

/// A plan with every choice of recomputation and every cheap choice of passes.
fn variants<'a>(request: &Request, layout: &'a Layout, maker: &Maker) -> Vec<Job<'a>> {
    let mut jobs = Vec::new();
    for &recompute in &request.recompute {
        for &passes in request.passes.iter().filter(|passes| passes.is_cheap()) {
            jobs.push(Job { layout, maker: maker.clone(), recompute, passes });
        }
    }
    jobs
}

/// Quickly synthesised schedules for a layout: without recomputation, and with recomputation everywhere. The synthesis
/// merges backwards itself, so no other pass is tried.
fn quickly_synthesised<'a>(request: &Request, layout: &'a Layout) -> Vec<Job<'a>> {
    let passes = PassChoice::AsBuilt;
    let Some(effort) = request.synthesis.filter(|_| request.passes.contains(&passes)) else { return Vec::new() };
    let job = |&recompute: &Recompute| {
        let recomputing = match recompute {
            Recompute::Never => Vec::new(),
            Recompute::Everywhere => (0..layout.partition.stages()).collect(),
            Recompute::WhereNeeded => return None,
        };
        let maker = Maker::Synthesis { effort: quick(effort), starts: Vec::new(), recomputing };
        Some(Job { layout, maker, recompute, passes })
    };
    request.recompute.iter().filter_map(job).collect()
}

/// Prices all jobs in parallel. Unusable candidates are added to `dropped`, in the order of the jobs.
fn price_all<'a>(request: &Request, jobs: Vec<Job<'a>>, dropped: &mut Vec<Dropped>) -> Vec<Found<'a>> {
    let priced: Vec<_> = jobs
        .into_par_iter()
        .filter_map(|job| {
            let outcome = job.run(request).transpose()?;
            let outcome = outcome.map(|(plan, priced)| (job.candidate(request, &plan, &priced), plan));
            Some((job, outcome))
        })
        .collect();
    let mut found = Vec::new();
    for (job, outcome) in priced {
        match outcome {
            Ok((candidate, plan)) => {
                // A synthesised plan took long to make, so it is kept. Schedules rebuild theirs quickly, and the plans
                // of all candidates would take much memory.
                let maker = match &job.maker {
                    Maker::Synthesis { .. } => Maker::Made(plan, Strategy::Synthesised, candidate.recomputing.clone()),
                    other => other.clone(),
                };
                found.push(Found { candidate, job: Job { maker, ..job } });
            }
            Err(reason) => {
                let what = job.describe(request);
                // A schedule that cannot be built is listed once, not for each choice of recomputation and passes.
                if !dropped.iter().any(|d| d.what == what && d.reason == reason) {
                    dropped.push(Dropped { what, reason });
                }
            }
        }
    }
    found
}

/// Syntheses with full effort, on the layouts of the best candidates so far, starting from the best catalogue plans
/// there.
fn synthesised<'a>(request: &Request, found: &[Found<'a>], effort: Synthesis) -> Vec<Job<'a>> {
    if !request.passes.contains(&PassChoice::AsBuilt) {
        return Vec::new();
    }
    let mut order: Vec<&Found<'a>> = found.iter().filter(|f| !matches!(f.job.maker, Maker::Given(..))).collect();
    order.sort_by(|a, b| a.candidate.seconds.total_cmp(&b.candidate.seconds));
    let mut chosen: Vec<(&Layout, &[usize])> = Vec::new();
    for found in &order {
        let key = (found.job.layout, found.candidate.recomputing.as_slice());
        if chosen.len() < FINALISTS && !chosen.iter().any(|c| std::ptr::eq(c.0, key.0) && c.1 == key.1) {
            chosen.push(key);
        }
    }
    let job = |(layout, recomputing): (&'a Layout, &[usize])| {
        let here = order.iter().filter(|f| std::ptr::eq(f.job.layout, layout));
        let built = here.filter_map(|f| match f.job.maker {
            Maker::Schedule(index) => build(request, layout, index).ok(),
            _ => None,
        });
        let mut starts: Vec<Plan> = Vec::new();
        for plan in built {
            if starts.len() < SEEDS && !starts.contains(&plan) {
                starts.push(plan);
            }
        }
        let recompute = if recomputing.is_empty() { Recompute::Never } else { Recompute::WhereNeeded };
        let maker = Maker::Synthesis { effort, starts, recomputing: recomputing.to_vec() };
        Job { layout, maker, recompute, passes: PassChoice::AsBuilt }
    };
    chosen.into_iter().map(job).collect()
}

/// The best few pipelines so far, with the overlap passes.
fn overlapped<'a>(request: &Request, found: &[Found<'a>]) -> Vec<Job<'a>> {
    let passes = PassChoice::Overlap;
    if !request.passes.contains(&passes) {
        return Vec::new();
    }
    let mut order: Vec<&Found<'a>> = found.iter().filter(|f| f.job.passes == PassChoice::AsBuilt).collect();
    order.sort_by(|a, b| a.candidate.seconds.total_cmp(&b.candidate.seconds));
    let job = |found: &&Found<'a>| {
        let (layout, candidate) = (found.job.layout, &found.candidate);
        let plan = match &found.job.maker {
            Maker::Made(plan, ..) | Maker::Given(plan, _) => plan.clone(),
            Maker::Schedule(index) => build(request, layout, *index).ok()?,
            Maker::Synthesis { .. } => return None,
        };
        let maker = Maker::Made(plan, candidate.strategy.clone(), candidate.recomputing.clone());
        Some(Job { layout, maker, recompute: found.job.recompute, passes })
    };
    let most = OVERLAPPED[usize::from(!request.simulate.overlap)];
    let pipelines = order.iter().filter(|f| f.job.layout.partition.stages() > 1);
    pipelines.take(most).filter_map(job).collect()
}

fn report(request: &Request, found: Vec<Found<'_>>, dropped: Vec<Dropped>) -> Result<PlannerReport, PlannerError> {
    let fastest = found.iter().min_by(|a, b| {
        let (a, b) = (&a.candidate, &b.candidate);
        a.seconds.total_cmp(&b.seconds).then(a.peak_bytes.total_cmp(&b.peak_bytes))
    });
    // Running the job of the best candidate again gives the same plan; plans were not kept, to save memory.
    let again = fastest.and_then(|best| Some((best, best.job.run(request).ok()??.1)));
    let Some((best, priced)) = again else { return Err(nothing_fits(&dropped)) };
    let mut best = best.candidate.clone();
    best.pareto = true;
    let mut candidates: Vec<Candidate> = found.into_iter().map(|f| f.candidate).collect();
    sort_and_mark(&mut candidates);
    Ok(PlannerReport {
        breakdown: TimeBreakdown::new(&priced.simulation, priced.seconds),
        plan: priced.plan,
        profile: priced.profile,
        simulation: priced.simulation,
        overlap: priced.overlap,
        candidates,
        faster_without_cap: faster_without_cap(&dropped, best.seconds),
        dropped: dropped.into_iter().map(|dropped| (dropped.what, dropped.reason.to_string())).collect(),
        bound: bound(request),
        best,
    })
}

fn nothing_fits(dropped: &[Dropped]) -> PlannerError {
    let peaks = dropped.iter().filter_map(|d| match d.reason {
        DropReason::OverCap { peak, cap, .. } => Some((peak, cap)),
        _ => None,
    });
    PlannerError::NothingFits {
        candidates: dropped.len(),
        least_peak: peaks.min_by(|a, b| a.0.total_cmp(&b.0)),
        first: dropped.first().map_or(String::new(), |d| format!("{}: {}", d.what, d.reason)),
    }
}
