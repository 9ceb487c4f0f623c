//! The causes of idle time in a measured step, found from its events alone. They are the same causes as in a
//! simulation.
//!
//! Guarantees: the periods of a rank cover the time in which it does not compute, each moment once. A simulation's
//! track gives the simulation's causes if its transfers run beside computations. (Time in which a transfer blocks its
//! rank counts as [`IdleCause::Transfer`] here, but as occupied in a simulation.)
//!
//! 1. Time before a rank's first computation is warm-up; time after its last one is cool-down.
//! 2. The gap before a computation is split. Until the last value that it needs from another stage is computed, the
//!    rank waits for an input or a gradient.
//! 3. Then it waits for the transfer, until the last value is received, and while another transfer, a wait or a
//!    collective of the rank runs.
//! 4. The rest is overhead: all inputs are there, but the computation has not started. A track without receives does
//!    not show when values arrive, so this time counts as transfer there.

use super::report::{IdleCause, IdlePeriod};
use crate::plan::{Op, StageId, Task};
use crate::trace::{Event, Product, Track, awaited, product_of, spans_by};
use std::collections::{HashMap, HashSet};

/// Each rank's idle periods with their causes, in order of time. Like [`RankReport::idle`](super::RankReport::idle),
/// but from the events alone.
///
/// ```
/// use burn_pipeline_plan::cost::{Profile, UniformCosts};
/// use burn_pipeline_plan::schedule::{OneFOneB, Schedule, Size};
/// use burn_pipeline_plan::simulate::{IdleCause, SimulateOptions, idle_periods, simulate};
///
/// let plan = OneFOneB.build(Size::new(4, 8))?;
/// let profile = Profile::uniform(plan.placement(), UniformCosts::new(1.0, 1.0, 1.0))?;
/// let step = simulate(&plan, &profile, &SimulateOptions::default())?;
/// let found = idle_periods(&step.track("measured"));
/// let waited = found[0].iter().filter(|idle| idle.cause == IdleCause::Gradient).map(|idle| idle.end - idle.start);
/// assert_eq!(waited.sum::<f64>(), step.ranks[0].idle_of(IdleCause::Gradient));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn idle_periods(track: &Track) -> Vec<Vec<IdlePeriod>> {
    let index = TrackIndex::of(track);
    (0..track.rows()).map(|rank| index.idle(rank, track.end())).collect()
}

/// The events of a track, indexed for lookup.
struct TrackIndex<'a> {
    /// When each value was computed, in order of time.
    made: HashMap<Product, Vec<(f64, f64)>>,
    /// When each rank received each value, in order of time.
    received: HashMap<(usize, Product), Vec<(f64, f64)>>,
    /// The stages and microbatches with an `I`. Elsewhere `W` is the whole backward.
    split: HashSet<(StageId, Option<usize>)>,
    /// The values that a computation receives over skip edges.
    skipped: HashMap<Product, Vec<Product>>,
    /// Each rank's computations, in order of time.
    computing: Vec<Vec<&'a Event>>,
    /// Each rank's transfers, waits and collectives, merged, in order of time.
    communicating: Vec<Vec<(f64, f64)>>,
}

impl<'a> TrackIndex<'a> {
    fn of(track: &'a Track) -> Self {
        let (mut split, mut skipped) = (HashSet::new(), HashMap::<_, Vec<_>>::new());
        for task in track.events.iter().flat_map(|event| event.action.tasks()) {
            if task.op() == Op::BackwardInput {
                split.insert((task.stage(), task.microbatch()));
            }
            if let (Some(value), Some(_)) = (awaited(task), task.skip_peer()) {
                skipped.entry((task.stage(), task.microbatch(), value.2)).or_default().push(value);
            }
        }
        let (mut computing, mut communicating) = (vec![Vec::new(); track.rows()], vec![Vec::new(); track.rows()]);
        for event in &track.events {
            if event.action.tasks().any(|task| task.op().is_work()) {
                computing[event.rank].push(event);
            } else {
                communicating[event.rank].push((event.start, event.end));
            }
        }
        computing.iter_mut().for_each(|events| events.sort_by(|a, b| a.start.total_cmp(&b.start)));
        let received = |event: &Event| {
            let rank = event.rank;
            event.action.tasks().filter_map(awaited).map(move |value| (rank, value))
        };
        Self {
            made: spans_by(track, |event| event.action.tasks().filter_map(product_of)),
            received: spans_by(track, received),
            split,
            skipped,
            computing,
            communicating: communicating.into_iter().map(merged).collect(),
        }
    }

    fn idle(&self, rank: usize, step: f64) -> Vec<IdlePeriod> {
        let events = &self.computing[rank];
        let (mut clock, mut idle) = (0.0, Vec::new());
        for (index, event) in events.iter().enumerate() {
            match index {
                0 => push(&mut idle, clock, event.start, IdleCause::WarmUp),
                _ => self.gap(event, clock, &mut idle),
            }
            clock = event.end.max(clock);
        }
        push(&mut idle, clock, step, if events.is_empty() { IdleCause::WarmUp } else { IdleCause::CoolDown });
        idle
    }

    /// Adds the idle periods from `from` to the start of an event.
    fn gap(&self, event: &Event, from: f64, idle: &mut Vec<IdlePeriod>) {
        let needed: Vec<Product> = event.action.tasks().flat_map(|task| self.needs(task)).collect();
        let made = needed.iter().filter_map(|value| Some((latest(self.made.get(value)?, event.start)?, value.2)));
        let mut clock = from;
        let mut idle_until = |until: f64, cause| {
            push(idle, clock, until.min(event.start), cause);
            clock = clock.max(until.min(event.start));
            clock
        };
        if let Some((made, forward)) = made.max_by(|a, b| a.0.total_cmp(&b.0)) {
            idle_until(made, IdleCause::of_value(forward));
        }
        if self.received.is_empty() {
            idle_until(event.start, IdleCause::Transfer);
        }
        let received = |value: &Product| latest(self.received.get(&(event.rank, *value))?, event.start);
        let clock = idle_until(needed.iter().filter_map(received).fold(from, f64::max), IdleCause::Transfer);
        let spans = &self.communicating[event.rank];
        let first = spans.partition_point(|&(_, end)| end <= clock);
        for &(start, end) in spans[first..].iter().take_while(|(start, _)| *start < event.start) {
            idle_until(start, IdleCause::Overhead);
            idle_until(end, IdleCause::Transfer);
        }
        idle_until(event.start, IdleCause::Overhead);
    }

    /// The values of other stages that a computation needs.
    fn needs(&self, task: Task) -> Vec<Product> {
        let (stage, microbatch) = (task.stage(), task.microbatch());
        let (neighbour, forward) = match task.op() {
            Op::Forward => (stage.previous(), true),
            Op::BackwardWeight if self.split.contains(&(stage, microbatch)) => return Vec::new(),
            op if op.is_backward() => (stage.next(usize::MAX), false),
            _ => return Vec::new(),
        };
        let skipped = self.skipped.get(&(stage, microbatch, forward)).cloned().unwrap_or_default();
        neighbour.map(|stage| (stage, microbatch, forward)).into_iter().chain(skipped).collect()
    }
}

/// The end of the last of these spans that began at `by` or before.
fn latest(spans: &[(f64, f64)], by: f64) -> Option<f64> {
    let begun = spans.partition_point(|&(start, _)| start <= by);
    Some(spans[begun.checked_sub(1)?].1)
}

fn push(idle: &mut Vec<IdlePeriod>, start: f64, end: f64, cause: IdleCause) {
    if end > start {
        idle.push(IdlePeriod { start, end, cause });
    }
}

/// The union of the spans, in order of time.
fn merged(mut spans: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    spans.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut union: Vec<(f64, f64)> = Vec::with_capacity(spans.len());
    for (start, end) in spans {
        match union.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => union.push((start, end)),
        }
    }
    union
}
