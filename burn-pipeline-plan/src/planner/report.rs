//! The planner's report: the best candidate with its plan and a breakdown of its seconds, all other candidates, and the
//! dropped ones with their reasons.

use super::error::DropReason;
use super::passes::PassChoice;
use super::request::Cut;
use crate::cost::{Partition, Profile};
use crate::pass::overlap::PassReport;
use crate::plan::{CheckedPlan, PlacementKind};
use crate::simulate::{IdleCause, Simulation};
use std::fmt;

/// How a candidate uses the ranks.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum Strategy {
    /// One rank runs everything.
    OneDevice,
    /// Each rank runs its share of the microbatches through a replica of the whole model.
    DataParallel,
    /// A pipeline with this schedule. [`by_name`](crate::schedule::by_name) knows the name, except for variants of the
    /// cost-driven schedule.
    Schedule(String),
    /// A pipeline with a schedule synthesised for the profile.
    Synthesised,
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Strategy::OneDevice => "one device",
            Strategy::DataParallel => "data parallel",
            Strategy::Schedule(name) => name,
            Strategy::Synthesised => "synthesised",
        })
    }
}

/// A candidate that can be used.
#[derive(Clone, PartialEq, Debug)]
pub struct Candidate {
    /// How the ranks are used.
    pub strategy: Strategy,
    /// The kind of placement.
    pub placement: PlacementKind,
    /// Stages per rank, of one route.
    pub chunks: usize,
    /// How the layers were cut.
    pub cut: Cut,
    /// The cut of the layers into stages.
    pub partition: Partition,
    /// Microbatches of the step.
    pub microbatches: usize,
    /// True if embedding and head are parallel over all ranks.
    pub vocabulary_parallel: bool,
    /// Members of each tensor-parallel group, or of the largest one if sizes differ. The plan has one row per group.
    pub members: usize,
    /// The group sizes of all pipeline ranks if they differ; otherwise empty.
    pub groups: Vec<usize>,
    /// The stages that recompute.
    pub recomputing: Vec<usize>,
    /// The passes that ran on the plan.
    pub passes: PassChoice,
    /// Seconds of the step, including the all-reduce of gradients between replicas.
    pub seconds: f64,
    /// The most bytes held at once on any rank.
    pub peak_bytes: f64,
    /// True if no other candidate is both faster and smaller.
    pub pareto: bool,
}

/// Writes the candidate's choices.
impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} microbatches", self.strategy, self.microbatches)?;
        if self.partition.stages() > 1 {
            write!(f, ", {} placement of {} a rank, {} cut {}", self.placement, self.chunks, self.cut, self.partition)?;
        }
        if self.vocabulary_parallel {
            f.write_str(", vocabulary parallel")?;
        }
        f.write_str(&held_by(if self.groups.is_empty() { std::slice::from_ref(&self.members) } else { &self.groups }))?;
        match (self.recomputing.len(), self.partition.stages()) {
            (0, _) => {}
            (some, all) if some == all => f.write_str(", recomputing everywhere")?,
            _ => write!(f, ", recomputing in stages {:?}", self.recomputing)?,
        }
        if self.passes == PassChoice::AsBuilt { Ok(()) } else { write!(f, ", {}", self.passes) }
    }
}

/// A candidate that cannot be used, and why.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Dropped {
    pub(super) what: String,
    pub(super) reason: DropReason,
}

/// Where the seconds of a step go. The parts add up to the seconds of the step.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TimeBreakdown {
    /// Mean seconds of computation of a rank.
    pub work: f64,
    /// Seconds of computation of the busiest rank above the mean.
    pub imbalance: f64,
    /// Idle seconds of the busiest rank before its first action and after its last one.
    pub ends: f64,
    /// Idle seconds of the busiest rank while other ranks still compute its inputs.
    pub waiting: f64,
    /// Seconds in which the busiest rank waits for transfers and collectives, or is occupied by them.
    pub transfer: f64,
    /// Seconds after the last action in which replicas add up their gradients.
    pub reduction: f64,
}

impl TimeBreakdown {
    pub(super) fn new(simulation: &Simulation, seconds: f64) -> Self {
        let busiest = simulation.ranks.iter().max_by(|a, b| a.busy.total_cmp(&b.busy));
        let idle = |causes: &[IdleCause]| busiest.map_or(0.0, |rank| causes.iter().map(|&c| rank.idle_of(c)).sum());
        Self {
            work: simulation.work,
            imbalance: busiest.map_or(0.0, |rank| rank.busy) - simulation.work,
            ends: idle(&[IdleCause::WarmUp, IdleCause::CoolDown]),
            waiting: idle(&[IdleCause::Input, IdleCause::Gradient]),
            transfer: idle(&[IdleCause::Transfer]) + busiest.map_or(0.0, |rank| rank.occupied),
            reduction: seconds - simulation.makespan,
        }
    }

    /// All parts except the work, each with a description, the largest first.
    pub fn losses(&self) -> Vec<(&'static str, f64)> {
        let mut losses = vec![
            ("the busiest rank works longer than the others", self.imbalance),
            ("it idles before its first and after its last action", self.ends),
            ("it waits for what other ranks compute", self.waiting),
            ("it waits for transfers", self.transfer),
            ("replicas add up their gradients", self.reduction),
        ];
        losses.sort_by(|a, b| b.1.total_cmp(&a.1));
        losses
    }
}

/// What the planner found.
#[derive(Clone, PartialEq, Debug)]
pub struct PlannerReport {
    /// The fastest candidate; among equally fast ones, the one with the lowest peak.
    pub best: Candidate,
    /// The plan of the best candidate, with transfers. Without a pipeline it is the plan of one rank; with data
    /// parallelism all ranks run it.
    pub plan: CheckedPlan,
    /// The costs of the plan's stages.
    pub profile: Profile,
    /// The simulation of the plan.
    pub simulation: Simulation,
    /// What each overlap pass did to the plan; empty if none ran.
    pub overlap: Vec<PassReport>,
    /// Where the seconds of the step go.
    pub breakdown: TimeBreakdown,
    /// All usable candidates, fastest first.
    pub candidates: Vec<Candidate>,
    /// All unusable candidates, each with the reason.
    pub dropped: Vec<(String, String)>,
    /// The fastest candidate that was dropped only for the cap, with its seconds, if it is faster than the best one.
    pub faster_without_cap: Option<(String, f64)>,
    /// Seconds that no candidate can beat.
    pub bound: f64,
}

impl PlannerReport {
    /// The report for tensor-parallel groups of these sizes, one per stage; a single size applies to all stages.
    pub(super) fn held_by(mut self, sizes: &[usize]) -> Self {
        let members = sizes.iter().copied().max().unwrap_or(1);
        let groups = if sizes.len() > 1 { sizes.to_vec() } else { Vec::new() };
        let held = |candidate: &mut Candidate| (candidate.members, candidate.groups) = (members, groups.clone());
        self.candidates.iter_mut().chain([&mut self.best]).for_each(held);
        let named = |what: &mut String| what.push_str(&held_by(sizes));
        self.dropped.iter_mut().map(|(what, _)| what).for_each(named);
        self.faster_without_cap.iter_mut().map(|(what, _)| what).for_each(named);
        self
    }

    /// Merges both reports: the better plan, and all candidates.
    pub(super) fn joined(self, other: Self) -> Self {
        let key = |report: &Self| (report.best.seconds, report.best.peak_bytes);
        let (mut better, worse) = if key(&other) < key(&self) { (other, self) } else { (self, other) };
        better.candidates.extend(worse.candidates);
        sort_and_mark(&mut better.candidates);
        better.dropped.extend(worse.dropped);
        better.bound = better.bound.min(worse.bound);
        let faster = [better.faster_without_cap.take(), worse.faster_without_cap].into_iter().flatten();
        let faster = faster.filter(|(_, seconds)| *seconds < better.best.seconds);
        better.faster_without_cap = faster.min_by(|a, b| a.1.total_cmp(&b.1));
        better
    }

    /// The Pareto front of seconds and bytes, fastest first.
    pub fn front(&self) -> impl Iterator<Item = &Candidate> {
        self.candidates.iter().filter(|candidate| candidate.pareto)
    }
}

/// Writes the report as text, with the Pareto front as a table.
impl fmt::Display for PlannerReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let best = &self.best;
        writeln!(f, "best: {best}")?;
        writeln!(f, "  {:.6} s a step, {:.4e} bytes on the fullest rank", best.seconds, best.peak_bytes)?;
        writeln!(
            f,
            "  no candidate can beat {:.6} s ({:.2} % below)",
            self.bound,
            100.0 * (1.0 - self.bound / best.seconds)
        )?;
        writeln!(f, "\nwhere its seconds go:")?;
        writeln!(f, "  {:>12.6}  work of a rank on average", self.breakdown.work)?;
        for (what, seconds) in self.breakdown.losses().into_iter().filter(|(_, seconds)| *seconds > 0.0) {
            writeln!(f, "  {seconds:>12.6}  {what}")?;
        }
        if let Some((what, seconds)) = &self.faster_without_cap {
            let reason = self.dropped.iter().find(|(dropped, _)| dropped == what).map_or("", |(_, reason)| reason);
            writeln!(
                f,
                "\nthe cap costs {:.6} s: {what} would take {seconds:.6} s, but {reason}",
                best.seconds - seconds
            )?;
        }
        writeln!(f, "\nnothing is both faster and leaner than:")?;
        writeln!(f, "  {:>12} {:>12}  what", "seconds", "bytes")?;
        for candidate in self.front() {
            writeln!(f, "  {:>12.6} {:>12.4e}  {candidate}", candidate.seconds, candidate.peak_bytes)?;
        }
        write!(f, "\n{} candidates can be used, {} were dropped", self.candidates.len(), self.dropped.len())
    }
}

/// Describes the sizes of tensor-parallel groups; empty for groups of one rank.
fn held_by(sizes: &[usize]) -> String {
    match sizes {
        [] | [1] => String::new(),
        [members] => format!(", each stage on {members} ranks"),
        sizes => format!(", stages on {} ranks", sizes.iter().map(usize::to_string).collect::<Vec<_>>().join("+")),
    }
}

/// Sorts candidates by seconds, then bytes, and marks the Pareto front.
pub(super) fn sort_and_mark(candidates: &mut [Candidate]) {
    // The sort is stable: equal candidates stay in the order in which they were tried.
    candidates.sort_by(|a, b| a.seconds.total_cmp(&b.seconds).then(a.peak_bytes.total_cmp(&b.peak_bytes)));
    let mut least = f64::INFINITY;
    for candidate in candidates {
        candidate.pareto = candidate.peak_bytes < least;
        least = least.min(candidate.peak_bytes);
    }
}

/// The fastest candidate that was dropped only for the cap, with its seconds, if they are below `seconds`.
pub(super) fn faster_without_cap(dropped: &[Dropped], seconds: f64) -> Option<(String, f64)> {
    let over = dropped.iter().filter_map(|dropped| match dropped.reason {
        DropReason::OverCap { makespan, .. } if makespan < seconds => Some((&dropped.what, makespan)),
        _ => None,
    });
    over.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(what, makespan)| (what.clone(), makespan))
}
