//! The discrete-event simulation: each rank runs its row in order, as early as what it needs allows.
//!
//! Guarantees: the outcome does not depend on the order in which ranks are looked at, since every time is a maximum
//! of times that the plan alone relates; a plan in which some rank can never go on ends in an error that names it.
//!
//! 1. A rank runs its next action if what it needs was made; else it is left, and woken when that is made.
//! 2. In an unlowered plan a value crosses from rank to rank by itself: latency plus bytes over bandwidth after the
//!    action that made it, which occupies neither rank. In a lowered plan sends and receives carry it
//!    ([`super::transfers`]).
//! 3. A fused action with a cost of its own starts when both parts can and gives both results at its end; one
//!    without runs its two tasks one after the other.
//! 4. When no rank can go on, the step is over, or it is a deadlock.

use super::error::{Blocked, SimulateError};
use super::memory::{Held, Ledger};
use super::report::{IdleCause, IdlePeriod, Simulation};
use super::transfers::Transfers;
use super::{SimulateOptions, report_of, validate::validate};
use crate::cost::Costs;
use crate::plan::edges::Edges;
use crate::plan::waits::Awaited;
use crate::plan::{Action, MicrobatchTask, Op, Plan, StageId, Task};
use crate::trace::Event;

/// Not made yet: any comparison with it is false.
pub(super) const NEVER: f64 = f64::NAN;

/// One rank in the course of a simulation.
#[derive(Clone, Debug, Default)]
pub(super) struct RankState {
    /// Index of the next action in its row.
    pub(super) next: usize,
    /// Is the first task of a fused action done, and the second not?
    pub(super) half: bool,
    /// Has the transfer that it stands at been posted?
    pub(super) posted: bool,
    /// When it is free.
    pub(super) clock: f64,
    /// When its collectives' lane is free (only where they overlap with compute).
    pub(super) lane: f64,
    pub(super) busy: f64,
    pub(super) first: Option<f64>,
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

/// When a value left its maker and when it is there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub(super) sent: f64,
    pub(super) arrived: f64,
    pub(super) cause: IdleCause,
}

/// The simulation's state.
pub(super) struct Engine<'a> {
    pub(super) plan: &'a Plan,
    pub(super) costs: Costs<'a>,
    pub(super) options: SimulateOptions,
    pub(super) lowered: bool,
    training: bool,
    pub(super) stride: usize,
    /// End of `F`, by stage and microbatch.
    pub(super) outputs: Vec<f64>,
    /// End of `I` or `B`, by stage and microbatch.
    pub(super) gradients: Vec<f64>,
    /// When the gathered parameters of a stage are there; `None` while it is not unsharded.
    pub(super) unsharded: Vec<Option<f64>>,
    /// When the reduction of a stage's gradients is over; `None` before it starts.
    pub(super) reduced: Vec<Option<f64>>,
    /// Has a stage gradients of its weights?
    summed: Vec<bool>,
    /// Which starts have waits of their own.
    awaited: Awaited,
    pub(super) transfers: Transfers,
    pub(super) ranks: Vec<RankState>,
    pub(super) events: Vec<Event>,
    queue: Vec<usize>,
}

impl<'a> Engine<'a> {
    pub(super) fn new(plan: &'a Plan, costs: Costs<'a>, options: SimulateOptions) -> Result<Self, SimulateError> {
        validate(plan)?;
        let stride = plan.microbatches().iter().copied().max().unwrap_or(0);
        let (slots, lowered) = (plan.placement().slots(), plan.is_lowered());
        let skips = plan.skips().len() * plan.placement().routes();
        let mut engine = Self {
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
            transfers: Transfers::new(if lowered { (slots + skips) * stride } else { 0 }),
            ranks: vec![RankState::default(); plan.ranks()],
            events: Vec::with_capacity(plan.rows().iter().map(Vec::len).sum()),
            queue: (0..plan.ranks()).rev().collect(),
        };
        engine.mark_awaited();
        Ok(engine)
    }

    /// Runs the plan to its end.
    pub(super) fn run(mut self) -> Result<Simulation, SimulateError> {
        while let Some(rank) = self.queue.pop() {
            self.advance(rank);
        }
        let blocked: Vec<Blocked> = (0..self.ranks.len()).filter_map(|rank| self.blocked(rank)).collect();
        if blocked.is_empty() { Ok(report_of(self)) } else { Err(SimulateError::Deadlock { blocked }) }
    }

    /// The entry of a stage and microbatch in the tables.
    pub(super) fn at(&self, stage: StageId, microbatch: usize) -> usize {
        self.plan.placement().slot(stage) * self.stride + microbatch
    }

    /// Looks at a rank again.
    pub(super) fn wake(&mut self, rank: usize) {
        self.queue.push(rank);
    }

    /// Does the cell that a rank stands at start something that goes on beside what follows?
    pub(super) fn runs_beside(&self, rank: usize) -> bool {
        self.options.overlap || self.is_awaited(rank, self.ranks[rank].next)
    }

    /// Does a cell start something that has a wait of its own?
    pub(super) fn is_awaited(&self, rank: usize, step: usize) -> bool {
        self.awaited.at(rank, step)
    }

    fn advance(&mut self, rank: usize) {
        let plan = self.plan;
        while let Some(&action) = plan.row(rank).get(self.ranks[rank].next) {
            if !self.run_action(rank, action) {
                return;
            }
            self.ranks[rank].next += 1;
        }
    }

    /// Runs an action if it can; else changes nothing that a second try would repeat.
    fn run_action(&mut self, rank: usize, action: Action) -> bool {
        match (action, self.costs.fused_seconds(action)) {
            (Action::Overlap(first, second), Some(seconds)) => self.run_fused(rank, action, [first, second], seconds),
            (Action::Overlap(first, second), None) => {
                if !self.ranks[rank].half {
                    if !self.run_microbatch(rank, first) {
                        return false;
                    }
                    self.ranks[rank].half = true;
                }
                let done = self.run_microbatch(rank, second);
                self.ranks[rank].half = !done;
                done
            }
            (Action::Single(task), _) => self.run_task(rank, task),
            (Action::Idle, _) => true,
        }
    }

    fn run_task(&mut self, rank: usize, task: Task) -> bool {
        match task.of_microbatch() {
            Some(task) => self.run_microbatch(rank, task),
            None => self.run_whole_stage(rank, task),
        }
    }

    fn run_microbatch(&mut self, rank: usize, task: MicrobatchTask) -> bool {
        match task.op() {
            Op::SendForward | Op::SendBackward => self.send(rank, task),
            Op::ReceiveForward | Op::ReceiveBackward => self.receive(rank, task),
            _ => {
                if let Some(start) = task.awaits() {
                    return self.wait_transfer(rank, task, start);
                }
                let Ok(arrival) = self.needs(task) else { return false };
                self.compute(rank, task.into(), &[task], &[arrival], self.costs.task_seconds(task.into()));
                true
            }
        }
    }

    fn run_fused(&mut self, rank: usize, action: Action, tasks: [MicrobatchTask; 2], seconds: f64) -> bool {
        let Ok(first) = self.needs(tasks[0]) else { return false };
        // Run one after the other it means the same: the second may use what the first makes.
        let own = self.at(tasks[0].stage(), tasks[0].microbatch());
        let before = std::mem::replace(&mut self.outputs[own], first.arrived);
        match self.needs(tasks[1]) {
            Ok(second) => {
                self.compute(rank, action, &tasks, &[first, second], seconds);
                true
            }
            Err(_) => {
                self.outputs[own] = before;
                false
            }
        }
    }

    /// Runs one computation, or two fused ones, whose needs arrive as given.
    fn compute(&mut self, rank: usize, action: Action, tasks: &[MicrobatchTask], needs: &[Arrival], seconds: f64) {
        let state = &mut self.ranks[rank];
        if let Some(last) = needs.iter().max_by(|a, b| a.arrived.total_cmp(&b.arrived)) {
            state.idle_until(last.sent.min(last.arrived), last.cause);
            state.idle_until(last.arrived, IdleCause::Transfer);
        }
        let (start, end) = (state.clock, state.clock + seconds);
        state.clock = end;
        state.busy += seconds;
        state.first.get_or_insert(start);
        state.last = end;
        self.events.push(Event { rank, action, start, end });
        for &task in tasks.iter().filter(|task| task.op() == Op::Forward) {
            let cost = self.costs.stage(task.stage());
            let memory = &mut self.ranks[rank].memory;
            memory.change(start, Held::Activations, cost.activation_bytes);
            // Without backwards nothing was to be kept, so nothing will be computed anew.
            if self.training {
                memory.change(start, Held::Activations, cost.recomputed_bytes);
                memory.change(end, Held::Activations, -cost.recomputed_bytes);
            }
            memory.activate();
        }
        for task in tasks.iter().filter(|task| task.op().gives_input_gradient()) {
            let bytes = self.costs.stage(task.stage()).recomputed_bytes;
            self.ranks[rank].memory.change(start, Held::Activations, bytes);
        }
        for task in tasks.iter().filter(|task| task.op().gives_weight_gradient()) {
            let slot = self.plan.placement().slot(task.stage());
            let bytes = self.costs.stage(task.stage()).gradient_bytes;
            let memory = &mut self.ranks[rank].memory;
            memory.change(start, Held::Gradients, bytes);
            if std::mem::replace(&mut self.summed[slot], true) {
                memory.change(end, Held::Gradients, -bytes);
            }
        }
        for (&task, need) in tasks.iter().zip(needs) {
            self.finish(rank, task, *need, end);
        }
    }

    /// Notes what a computation made and what it no longer needs.
    fn finish(&mut self, rank: usize, task: MicrobatchTask, need: Arrival, end: f64) {
        let (stage, placement) = (task.stage(), self.plan.placement());
        let (own, cost) = (self.at(stage, task.microbatch()), self.costs.stage(stage));
        let all = cost.activation_bytes + cost.recomputed_bytes;
        let (freed, over) = match task.op() {
            Op::Forward => (if self.training { 0.0 } else { cost.activation_bytes }, !self.training),
            Op::BackwardInput => (cost.freed_at_input_bytes, false),
            Op::BackwardWeight => (all - cost.freed_at_input_bytes, true),
            _ => (all, true),
        };
        let memory = &mut self.ranks[rank].memory;
        memory.change(end, Held::Activations, -freed);
        if over {
            memory.release();
        }
        let (from, to, message) = match task.op() {
            Op::Forward => (stage.previous(), placement.next(stage), stage.previous()),
            Op::BackwardInput | Op::Backward => (placement.next(stage), stage.previous(), Some(stage)),
            _ => return,
        };
        if let (Some(from), Some(message)) = (from, message)
            && placement.rank_of(from) != rank
        {
            let bytes = self.costs.message_bytes(message);
            memory.change(need.sent, Held::ReceiveBuffers, bytes);
            memory.change(end, Held::ReceiveBuffers, -bytes);
        }
        self.free_skips(rank, task, end);
        let table = if task.op() == Op::Forward { &mut self.outputs } else { &mut self.gradients };
        table[own] = end;
        if let Some(target) = to.map(|to| placement.rank_of(to)).filter(|&target| target != rank && !self.lowered) {
            self.wake(target);
        }
    }
}
