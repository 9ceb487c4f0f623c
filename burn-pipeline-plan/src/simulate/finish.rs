//! Builds the report of a simulation from its final state. All idle time before a rank's first computation counts as
//! warm-up, all after its last one as cool-down.

use super::memory::MemoryPoint;
use super::report::{IdleCause, IdlePeriod, RankReport, Simulation};
use super::state::{Engine, RankState};
use crate::cost::{Costs, StageCost};
use crate::trace::Event;

/// Sorts events by rank, then by time.
pub(super) fn in_order(mut events: Vec<Event>) -> Vec<Event> {
    events.sort_by(|a, b| a.rank.cmp(&b.rank).then(a.start.total_cmp(&b.start)));
    events
}

/// The report, after every rank has finished.
pub(super) fn report_of(engine: Engine<'_>) -> Simulation {
    let (costs, vocabulary, events) = (engine.costs, engine.plan.has_vocabulary(), in_order(engine.events));
    let makespan = events.iter().map(|event| event.end).fold(0.0, f64::max);
    let ranks: Vec<RankReport> = engine
        .ranks
        .into_iter()
        .enumerate()
        .map(|(rank, state)| rank_report(rank, state, &costs, makespan, vocabulary))
        .collect();
    Simulation {
        makespan,
        span: ranks.iter().map(|rank| rank.end - rank.start).fold(0.0, f64::max),
        work: ranks.iter().map(|rank| rank.busy).sum::<f64>() / ranks.len() as f64,
        ranks,
        events,
    }
}

fn rank_report(rank: usize, state: RankState, costs: &Costs<'_>, makespan: f64, vocabulary: bool) -> RankReport {
    let placement = costs.placement();
    let start = state.first.unwrap_or(makespan);
    let end = if state.first.is_some() { state.last } else { makespan };
    let warm_up = IdlePeriod { start: 0.0, end: start, cause: IdleCause::WarmUp };
    let cool_down = IdlePeriod { start: end, end: makespan, cause: IdleCause::CoolDown };
    let between = state.idle.into_iter().filter(|idle| idle.start >= start && idle.end <= end);
    let idle: Vec<IdlePeriod> =
        std::iter::once(warm_up).chain(between).chain([cool_down]).filter(|idle| idle.end > idle.start).collect();
    let idle_inside: f64 = idle.iter().filter(|i| i.start >= start && i.end <= end).map(|i| i.end - i.start).sum();
    let share = placement.ranks() as f64 / placement.stages() as f64;
    let held: Vec<&StageCost> = placement.stages_of(rank).into_iter().map(|stage| costs.stage(stage)).collect();
    let stages: f64 = held.iter().map(|cost| cost.weight_bytes).sum();
    let weight_bytes = stages + if vocabulary { costs.pieces().weight_bytes } else { 0.0 };
    let optimizer_bytes: f64 = held.iter().map(|cost| cost.optimizer_bytes).sum();
    let peak_activations = state.memory.most_live() as f64 * share;
    let memory = state.memory.curve();
    RankReport {
        start,
        end,
        busy: state.busy,
        occupied: (end - start - state.busy - idle_inside).max(0.0),
        idle,
        peak_activations,
        weight_bytes,
        optimizer_bytes,
        peak_bytes: weight_bytes + optimizer_bytes + memory.iter().map(MemoryPoint::total).fold(0.0, f64::max),
        memory,
    }
}
