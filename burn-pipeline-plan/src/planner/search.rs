//! The search: everything that can be built on every ground, priced in parallel.
//!
//! Guarantees: the same request gives the same answer, whatever the number of threads; the best is no slower than
//! any candidate that fits.
//!
//! 1. Grounds: workloads x shapes x cuts ([`super::ground`]). On each, every family of the catalogue whose placement it
//!    is (the cost-driven one with several limits), and a quick list schedule; each with every recomputation and pass.
//! 2. On the grounds of the best few so far, a schedule is made with full effort, starting from the catalogue's best
//!    there as well.
//! 3. The best few are tried with their communication moved.
//! 4. What does not fit is dropped with its reason; the rest is ranked.

use super::alone;
use super::answer::{BestPlan, Candidate, Choice, DroppedCandidate, PlannerReport, Strategy, TimeBreakdown, rank};
use super::bound::bound;
use super::error::{DropReason, PlannerError};
use super::families::families;
use super::ground::{Ground, NoGround, grounds};
use super::passes::PassChoice;
use super::price::{Priced, price, price_as, recomputed};
use super::request::{Recompute, Request};
use super::synthesis::{Synthesis, SynthesisError};
use crate::plan::Plan;
use crate::schedule::Size;
use rayon::prelude::*;

/// Grounds on which a schedule is made with full effort.
const FINALISTS: usize = 3;

/// Candidates whose communication is moved, where transfers run beside computations and where they do not: there it
/// changes more, and what is best before says less.
const OVERLAPPED: [usize; 2] = [3, 12];

/// How much less a quick list schedule tries.
const QUICKER: usize = 16;

/// Catalogue plans from which each of them starts too.
const SEEDS: usize = 2;

/// How a plan is made.
#[derive(Clone, Debug)]
enum Maker {
    /// By the catalogue's family at this place of the ground's list.
    Family(usize),
    /// For the profile, with this effort, from these plans, where these stages recompute.
    Synthesis(Synthesis, Vec<Plan>, Vec<usize>),
    /// It is there.
    Given(Plan, Strategy),
    /// It is there, with the stages that recompute.
    Made(Plan, Strategy, Vec<usize>),
}

/// One candidate to price.
struct Job<'a> {
    ground: &'a Ground,
    maker: Maker,
    recompute: Recompute,
    passes: PassChoice,
}

/// One that can be used, with how to make it again.
struct Found<'a> {
    candidate: Candidate,
    job: Job<'a>,
}

/// Finds the best plan for a request.
///
/// # Errors
/// [`PlannerError`]: the request is not one, or nothing fits.
///
/// ```
/// use burn_pipeline_plan::cost::{LayerKind, Layer, Layers, LinkCost, LinkCosts};
/// use burn_pipeline_plan::planner::{Request, Workload, best_plan};
///
/// let block = Layer { output_bytes: 1e6, ..Layer::new(LayerKind::new('A')?).with_seconds(0.01, 0.01, 0.01) };
/// let workload = Workload::new(8, Layers::new(vec![block; 8])?);
/// let links = LinkCosts { default: LinkCost { latency: 1e-4, bandwidth: Some(1e10) }, ..LinkCosts::default() };
/// let planned = best_plan(&Request::new(vec![workload], 2, links))?;
/// assert!(planned.best.candidate.seconds < 1.05 * planned.bound);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn best_plan(request: &Request) -> Result<PlannerReport, PlannerError> {
    request.check()?;
    let (grounds, refused) = grounds(request);
    let alone = if request.unpipelined { whole_models(request) } else { Vec::new() };
    let mut dropped: Vec<DroppedCandidate> = refused.iter().map(|refusal| not_grounded(request, refusal)).collect();
    let mut jobs = Vec::new();
    for (ground, plan, way) in alone.iter().flatten() {
        jobs.extend(variants(request, ground, &Maker::Given(plan.clone(), way.clone())));
    }
    for ground in &grounds {
        let families = (0..families(request, ground).len()).map(Maker::Family);
        for maker in families {
            jobs.extend(variants(request, ground, &maker));
        }
        jobs.extend(quick(request, ground));
    }
    let mut found = price_all(request, jobs, &mut dropped);
    if let Some(synthesis) = request.synthesis {
        let finals = finalists(request, &found, synthesis);
        found.extend(price_all(request, finals, &mut dropped));
    }
    let overlapped = price_all(request, overlapped(request, &found), &mut dropped);
    let best = found.iter().map(|f| f.candidate.seconds).fold(f64::INFINITY, f64::min);
    found.extend(overlapped.into_iter().filter(|f| f.candidate.seconds < best));
    answer(request, found, dropped)
}

fn whole_models(request: &Request) -> Vec<Option<(Ground, Plan, Strategy)>> {
    let mut alone = Vec::new();
    for workload in 0..request.workloads.len() {
        let mut push = |replicas, way| {
            alone.push(alone::whole(request, workload, replicas).ok().map(|(ground, plan)| (ground, plan, way)));
        };
        push(1, Strategy::OneDevice);
        if request.ranks > 1 {
            push(request.ranks, Strategy::DataParallel);
        }
    }
    alone
}

/// A quick list schedule on a ground, with nothing and with everything recomputed; it merges backwards itself.
fn quick<'a>(request: &Request, ground: &'a Ground) -> Vec<Job<'a>> {
    let stages = ground.partition.stages();
    let recomputing = |recompute| match recompute {
        Recompute::Never => Some(Vec::new()),
        Recompute::Everywhere => Some((0..stages).collect()),
        Recompute::WhereNeeded => None,
    };
    let passes = PassChoice::AsBuilt;
    let job = |synthesis: Synthesis, recompute: Recompute| {
        let synthesis = Synthesis { starts: 0, listing: synthesis.listing / QUICKER, ..synthesis };
        let maker = Maker::Synthesis(synthesis, Vec::new(), recomputing(recompute)?);
        Some(Job { ground, maker, recompute, passes })
    };
    let wanted = request.synthesis.filter(|_| request.passes.contains(&passes));
    wanted.map_or(Vec::new(), |s| request.recompute.iter().filter_map(|&recompute| job(s, recompute)).collect())
}

fn variants<'a>(request: &Request, ground: &'a Ground, maker: &Maker) -> Vec<Job<'a>> {
    let mut jobs = Vec::new();
    for &recompute in &request.recompute {
        for &passes in request.passes.iter().filter(|passes| passes.is_cheap()) {
            jobs.push(Job { ground, maker: maker.clone(), recompute, passes });
        }
    }
    jobs
}

/// Prices all jobs in parallel and sorts out what cannot be used, in the order of the jobs.
fn price_all<'a>(request: &Request, jobs: Vec<Job<'a>>, dropped: &mut Vec<DroppedCandidate>) -> Vec<Found<'a>> {
    let priced: Vec<_> = jobs
        .into_par_iter()
        .filter_map(|job| {
            let priced = run(request, &job)?;
            let outcome = priced.map(|(plan, priced)| (candidate(request, &job, &plan, &priced), plan));
            Some((job, outcome))
        })
        .collect();
    let mut found = Vec::new();
    for (job, outcome) in priced {
        match outcome {
            Ok((candidate, plan)) => {
                // What took long to make is kept; families build anew what little is wanted again.
                let maker = match &job.maker {
                    Maker::Synthesis(..) => {
                        Maker::Made(plan, Strategy::Synthesised, candidate.choice.recomputing.clone())
                    }
                    other => other.clone(),
                };
                found.push(Found { candidate, job: Job { maker, ..job } });
            }
            Err(reason) => {
                let what = describe(request, &job);
                // A family that cannot be built is told once, not for every pass and recomputation.
                if !dropped.iter().any(|d| d.what == what && d.reason == reason) {
                    dropped.push(DroppedCandidate { what, reason });
                }
            }
        }
    }
    found
}

/// Makes the plan of a job, and prices it; none where it would repeat another job.
fn run(request: &Request, job: &Job<'_>) -> Option<Result<(Plan, Priced), DropReason>> {
    let ground = job.ground;
    let plan = match &job.maker {
        Maker::Given(plan, _) => Ok(plan.clone()),
        Maker::Made(plan, _, recomputing) => {
            let priced = price_as(request, ground, plan, recomputing.clone(), job.passes)?;
            return Some(priced.map(|priced| (plan.clone(), priced)));
        }
        Maker::Family(index) => build(request, ground, *index),
        Maker::Synthesis(synthesis, starts, recomputing) => {
            return Some(synthesise(request, job, *synthesis, starts, recomputing));
        }
    };
    match plan {
        Ok(plan) => Some(price(request, ground, &plan, job.recompute, job.passes)?.map(|priced| (plan, priced))),
        Err(reason) => Some(Err(reason)),
    }
}

fn build(request: &Request, ground: &Ground, family: usize) -> Result<Plan, DropReason> {
    let size =
        Size::new(request.ranks, request.workloads[ground.workload].microbatches).with_chunks(ground.shape.chunks);
    let (_, family) = families(request, ground).swap_remove(family);
    Ok(family.build(size)?)
}

/// How often the cap is lowered for what lowering adds.
const TIGHTENINGS: usize = 3;

/// Makes a schedule for the ground, and prices it.
fn synthesise(
    request: &Request,
    job: &Job<'_>,
    synthesis: Synthesis,
    starts: &[Plan],
    recomputing: &[usize],
) -> Result<(Plan, Priced), DropReason> {
    let ground = job.ground;
    let microbatches = request.workloads[ground.workload].microbatches;
    let counts = match ground.placement.routes() {
        1 => vec![microbatches],
        _ => vec![microbatches.div_ceil(2), microbatches / 2],
    };
    let profile = recomputed(request, ground, recomputing)?;
    let attempt = |effort: Synthesis, cap: Option<f64>| {
        let made = Synthesis { cap, ..effort }.build(&profile, &ground.placement, &counts, starts)?;
        let priced = price_as(request, ground, &made.plan, recomputing.to_vec(), PassChoice::AsBuilt);
        // As it is built, a plan is always priced.
        let priced = priced.unwrap_or(Err(SynthesisError::DoesNotFit { cap: cap.unwrap_or(f64::INFINITY) }.into()))?;
        Ok((made.plan, priced))
    };
    // As in the synthesis: what lowered messages need is found with little effort.
    let quick = Synthesis { starts: 0, listing: synthesis.listing / QUICKER, ..synthesis };
    let efforts = if synthesis.starts == 0 { vec![(synthesis, 2)] } else { vec![(quick, TIGHTENINGS), (synthesis, 2)] };
    let (mut limit, mut best, mut refused) = (request.cap, None::<(Plan, Priced)>, None);
    for (effort, times) in efforts {
        for _ in 0..times {
            match attempt(effort, limit) {
                Ok(new) => {
                    let faster = best.as_ref().is_none_or(|(_, old)| new.1.seconds < old.seconds);
                    best = if faster { Some(new) } else { best };
                    break;
                }
                Err(reason) => {
                    let DropReason::OverCap { peak, cap, .. } = reason else {
                        refused.get_or_insert(reason);
                        break;
                    };
                    limit = limit.map(|limit| limit - (peak - cap) * (1.0 + 1e-9));
                    refused.get_or_insert(reason);
                }
            }
        }
    }
    let nothing = || SynthesisError::DoesNotFit { cap: request.cap.unwrap_or(f64::INFINITY) }.into();
    best.ok_or_else(|| refused.unwrap_or_else(nothing))
}

fn way(request: &Request, job: &Job<'_>) -> Strategy {
    match &job.maker {
        Maker::Given(_, way) | Maker::Made(_, way, _) => way.clone(),
        Maker::Family(index) => Strategy::Family(families(request, job.ground).swap_remove(*index).0),
        Maker::Synthesis(..) => Strategy::Synthesised,
    }
}

fn candidate(request: &Request, job: &Job<'_>, plan: &Plan, priced: &Priced) -> Candidate {
    let choice = Choice {
        strategy: way(request, job),
        placement: plan.placement().kind(),
        chunks: job.ground.shape.chunks,
        cut: job.ground.cut,
        partition: job.ground.partition.clone(),
        microbatches: request.workloads[job.ground.workload].microbatches,
        recomputing: priced.recomputing.clone(),
        passes: job.passes,
    };
    Candidate { choice, seconds: priced.seconds, peak_bytes: priced.simulation.peak_bytes(), pareto: false }
}

fn describe(request: &Request, job: &Job<'_>) -> String {
    let (ground, microbatches) = (job.ground, request.workloads[job.ground.workload].microbatches);
    let (way, shape) = (way(request, job), ground.shape);
    let merged = if job.passes == PassChoice::AsBuilt { String::new() } else { format!(", {}", job.passes) };
    let recompute = match job.recompute {
        Recompute::Never => String::new(),
        other => format!(", recomputing {other}"),
    };
    format!(
        "{way}, {microbatches} microbatches, {} placement of {} a rank, {} cut{recompute}{merged}",
        shape.kind, shape.chunks, ground.cut
    )
}

fn not_grounded(request: &Request, refusal: &NoGround) -> DroppedCandidate {
    let microbatches = request.workloads[refusal.workload].microbatches;
    let (kind, chunks, cut) = (refusal.shape.kind, refusal.shape.chunks, refusal.cut);
    let what = format!("{microbatches} microbatches, {kind} placement of {chunks} a rank, {cut} cut");
    DroppedCandidate { what, reason: refusal.reason.clone() }
}

/// Schedules to make with full effort: on the grounds of the best so far, from the catalogue's best plans there.
fn finalists<'a>(request: &Request, found: &[Found<'a>], synthesis: Synthesis) -> Vec<Job<'a>> {
    let mut order: Vec<&Found<'a>> = found.iter().filter(|f| !matches!(f.job.maker, Maker::Given(..))).collect();
    order.sort_by(|a, b| a.candidate.seconds.total_cmp(&b.candidate.seconds));
    let mut chosen: Vec<(&Ground, &[usize])> = Vec::new();
    for found in &order {
        let key = (found.job.ground, found.candidate.choice.recomputing.as_slice());
        if chosen.len() < FINALISTS && !chosen.iter().any(|c| std::ptr::eq(c.0, key.0) && c.1 == key.1) {
            chosen.push(key);
        }
    }
    let job = |(ground, recomputing): (&'a Ground, &[usize])| {
        let here = order.iter().filter(|f| std::ptr::eq(f.job.ground, ground));
        let built = here.filter_map(|f| match f.job.maker {
            Maker::Family(index) => build(request, ground, index).ok(),
            _ => None,
        });
        let mut starts: Vec<Plan> = Vec::new();
        for plan in built {
            if starts.len() < SEEDS && !starts.contains(&plan) {
                starts.push(plan);
            }
        }
        let recompute = if recomputing.is_empty() { Recompute::Never } else { Recompute::WhereNeeded };
        let maker = Maker::Synthesis(synthesis, starts, recomputing.to_vec());
        Job { ground, maker, recompute, passes: PassChoice::AsBuilt }
    };
    let wanted = request.passes.contains(&PassChoice::AsBuilt);
    chosen.into_iter().filter(|_| wanted).map(job).collect()
}

/// The best few so far with their communication moved.
fn overlapped<'a>(request: &Request, found: &[Found<'a>]) -> Vec<Job<'a>> {
    let passes = PassChoice::Overlap;
    let mut order: Vec<&Found<'a>> = found.iter().filter(|f| f.job.passes == PassChoice::AsBuilt).collect();
    order.sort_by(|a, b| a.candidate.seconds.total_cmp(&b.candidate.seconds));
    let job = |found: &&Found<'a>| {
        let (ground, choice) = (found.job.ground, &found.candidate.choice);
        let plan = match &found.job.maker {
            Maker::Made(plan, ..) | Maker::Given(plan, _) => plan.clone(),
            Maker::Family(index) => build(request, ground, *index).ok()?,
            Maker::Synthesis(..) => return None,
        };
        let maker = Maker::Made(plan, choice.strategy.clone(), choice.recomputing.clone());
        Some(Job { ground, maker, recompute: found.job.recompute, passes })
    };
    let wanted = request.passes.contains(&passes);
    let most = OVERLAPPED[usize::from(!request.simulate.overlap)];
    let crosses = |f: &&&Found<'a>| f.job.ground.partition.stages() > 1;
    order.iter().filter(|_| wanted).filter(crosses).take(most).filter_map(job).collect()
}

fn answer(
    request: &Request,
    found: Vec<Found<'_>>,
    dropped: Vec<DroppedCandidate>,
) -> Result<PlannerReport, PlannerError> {
    let fastest = found.iter().min_by(|a, b| {
        let (a, b) = (&a.candidate, &b.candidate);
        a.seconds.total_cmp(&b.seconds).then(a.peak_bytes.total_cmp(&b.peak_bytes))
    });
    // Plans are not kept: there are many, and only one is wanted. It comes out as before.
    let again = fastest.and_then(|best| Some((best, run(request, &best.job)?.ok()?.1)));
    let Some((best, priced)) = again else { return Err(nothing_fits(&dropped)) };
    let breakdown = TimeBreakdown::new(&priced.simulation, priced.seconds);
    let mut chosen = best.candidate.clone();
    chosen.pareto = true;
    let best = BestPlan {
        candidate: chosen,
        plan: priced.plan,
        profile: priced.profile,
        simulation: priced.simulation,
        breakdown,
    };
    let mut candidates: Vec<Candidate> = found.into_iter().map(|f| f.candidate).collect();
    rank(&mut candidates);
    Ok(PlannerReport { best, candidates, dropped, bound: bound(request) })
}

fn nothing_fits(dropped: &[DroppedCandidate]) -> PlannerError {
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
