//! The state of a simulation: each rank's progress, the values made and their times, and the messages in flight.
//!
//! Other files have the methods that change it: [`super::engine`] for computations, [`super::needs`] and
//! [`super::skips`] for their inputs, [`super::transfers`] for transfers, [`super::waits`] for waits,
//! [`super::vocabulary`] for a parallel vocabulary.

use super::memory::Ledger;
use super::messages::{NEVER, Rounds, Transfers};
use super::options::SimulateOptions;
use super::report::{IdleCause, IdlePeriod};
use crate::cost::Costs;
use crate::plan::edges::Edges;
use crate::plan::waits::Awaited;
use crate::plan::{Plan, StageId};
use crate::trace::Event;

#[derive(Clone, Debug, Default)]
pub(super) struct RankState {
    /// The index of the next action in its row.
    pub(super) next: usize,
    /// True if the first task of a fused action is done and the second is not.
    pub(super) half: bool,
    /// True if the next action is a transfer that has been posted.
    pub(super) posted: bool,
    /// The time at which the rank is free.
    pub(super) clock: f64,
    /// The time at which its lane for collectives is free (used only if they overlap with computation).
    pub(super) lane: f64,
    /// Seconds of computation so far.
    pub(super) busy: f64,
    /// Start of the first computation.
    pub(super) first: Option<f64>,
    /// End of the last computation.
    pub(super) last: f64,
    pub(super) idle: Vec<IdlePeriod>,
    pub(super) memory: Ledger,
}

impl RankState {
    /// Idles until `until`, if that is later than now.
    pub(super) fn idle_until(&mut self, until: f64, cause: IdleCause) {
        if until > self.clock {
            self.idle.push(IdlePeriod { start: self.clock, end: until, cause });
            self.clock = until;
        }
    }
}

/// The state of a simulation.
pub(super) struct Engine<'a> {
    pub(super) plan: &'a Plan,
    pub(super) costs: Costs<'a>,
    pub(super) options: SimulateOptions,
    pub(super) lowered: bool,
    /// True if the plan has backwards.
    pub(super) training: bool,
    /// The number of entries of a stage in the tables below: the most microbatches of a route.
    pub(super) stride: usize,
    /// End of `F`, by stage and microbatch.
    pub(super) outputs: Vec<f64>,
    /// End of `I` or `B`, by stage and microbatch.
    pub(super) gradients: Vec<f64>,
    /// The time at which a stage's gathered parameters arrive; `None` while they are sharded.
    pub(super) unsharded: Vec<Option<f64>>,
    /// The time at which the reduction of a stage's gradients ends; `None` before it starts.
    pub(super) reduced: Vec<Option<f64>>,
    /// True for each stage that has gradients of its weights.
    pub(super) summed: Vec<bool>,
    /// The transfers and collectives that have waits.
    awaited: Awaited,
    pub(super) transfers: Transfers,
    pub(super) rounds: Rounds,
    pub(super) ranks: Vec<RankState>,
    pub(super) events: Vec<Event>,
    /// Ranks to visit again; the last one is next.
    pub(super) queue: Vec<usize>,
}

impl<'a> Engine<'a> {
    /// The state before the first action.
    pub(super) fn new(plan: &'a Plan, costs: Costs<'a>, options: SimulateOptions) -> Self {
        let stride = plan.microbatches().iter().copied().max().unwrap_or(0);
        let (slots, lowered) = (plan.placement().slots(), plan.is_lowered());
        Self {
            plan,
            costs,
            options,
            lowered,
            training: plan.has_backward(),
            stride,
            outputs: vec![NEVER; slots * stride],
            gradients: vec![NEVER; slots * stride],
            unsharded: vec![None; slots],
            reduced: vec![None; slots],
            summed: vec![false; slots],
            awaited: Awaited::new(plan, &Edges::new(plan)),
            transfers: Transfers::new(if lowered { slots * stride } else { 0 }),
            rounds: Rounds::new(plan, &costs),
            ranks: vec![RankState::default(); plan.ranks()],
            events: Vec::with_capacity(plan.rows().iter().map(Vec::len).sum()),
            queue: (0..plan.ranks()).rev().collect(),
        }
    }

    /// The table index of a stage and microbatch.
    pub(super) fn at(&self, stage: StageId, microbatch: usize) -> usize {
        self.plan.placement().slot(stage) * self.stride + microbatch
    }

    /// Queues a rank to be visited again.
    pub(super) fn wake(&mut self, rank: usize) {
        self.queue.push(rank);
    }

    /// Returns true if a rank's next action, a transfer or collective, runs beside the actions after it.
    pub(super) fn runs_beside(&self, rank: usize) -> bool {
        self.options.overlap || self.is_awaited(rank, self.ranks[rank].next)
    }

    /// Returns true if an action is a transfer or collective that has a wait.
    pub(super) fn is_awaited(&self, rank: usize, step: usize) -> bool {
        self.awaited.at(rank, step)
    }
}
