//! The discrete-event simulation: each rank runs its row in order, as early as the inputs of its actions allow.
//!
//! Guarantees: the result does not depend on the order in which ranks are visited, because every time is a maximum of
//! times related by the plan alone. If some rank can never go on, the result is an error that names the rank.
//!
//! 1. A rank runs its next action if the inputs have been made. Otherwise the rank waits until they are.
//! 2. In an unlowered plan, a value crosses from rank to rank by itself: it arrives a latency plus bytes over bandwidth
//!    after the end of the action that made it, and occupies neither rank. In a lowered plan, sends and receives carry
//!    it ([`super::transfers`]).
//! 3. A fused action with its own cost starts when both parts can start, and gives both results at its end. Without its
//!    own cost, it runs its two tasks one after the other, once the inputs of both have been made.
//! 4. [`super::vocabulary`] runs the pieces of a parallel vocabulary and the collectives between them.
//! 5. When no rank can go on, the step is over or the plan deadlocks.

use super::error::SimulateError;
use super::finish::{in_order, report_of};
use super::hold::Run;
use super::messages::Arrival;
use super::options::SimulateOptions;
use super::report::{IdleCause, Simulation};
use super::state::Engine;
use super::validate::validate;
use crate::cost::Profile;
use crate::plan::{Action, MicrobatchTask, Op, Plan, Waiting};
use crate::trace::{Event, Track};

/// Simulates one step of a plan, lowered or not.
///
/// # Errors
/// - Returns [`SimulateError::Profile`] if the profile has another number of stages.
/// - Returns [`SimulateError::Foreign`] if an action names a stage, microbatch or edge that the plan does not have.
/// - Returns [`SimulateError::Sparse`] if the plan declares far more microbatches than it has actions.
/// - Returns [`SimulateError::Deadlock`] if some rank can never go on.
pub fn simulate(plan: &Plan, profile: &Profile, options: &SimulateOptions) -> Result<Simulation, SimulateError> {
    let costs = profile.costs(plan.placement())?;
    costs.check_vocabulary(plan)?;
    validate(plan)?;
    if options.overlap && plan.is_lowered() {
        // With overlap nothing blocks, so a plan that deadlocks on blocking transfers would pass. Run it both ways.
        Engine::new(plan, costs, SimulateOptions { overlap: false, ..*options }).run()?;
    }
    Engine::new(plan, costs, *options).run()
}

impl Engine<'_> {
    fn run(mut self) -> Result<Simulation, SimulateError> {
        self.mark_awaited();
        while let Some(rank) = self.queue.pop() {
            self.advance(rank);
        }
        let waiting: Vec<Waiting> = (0..self.ranks.len()).filter_map(|rank| self.blocked(rank)).collect();
        if waiting.is_empty() {
            return Ok(report_of(self));
        }
        let so_far = Track { name: self.plan.name().into(), ranks: self.plan.ranks(), events: in_order(self.events) };
        Err(SimulateError::Deadlock { waiting, so_far: Box::new(so_far) })
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

    /// Runs an action if it can. Otherwise returns false; trying again repeats no side effect.
    fn run_action(&mut self, rank: usize, action: Action) -> bool {
        match (action, self.costs.fused_seconds(action)) {
            (Action::Overlap(first, second), Some(seconds)) => self.run_fused(rank, action, [first, second], seconds),
            (Action::Overlap(first, second), None) => {
                if !self.ranks[rank].half {
                    if !self.can_begin([first, second]) || !self.run_microbatch(rank, first) {
                        return false;
                    }
                    self.ranks[rank].half = true;
                }
                let done = self.run_microbatch(rank, second);
                self.ranks[rank].half = !done;
                done
            }
            (Action::Single(task), _) => match task.of_microbatch() {
                Some(task) => self.run_microbatch(rank, task),
                None => self.run_whole_stage(rank, task),
            },
            (Action::Idle, _) => true,
        }
    }

    fn run_microbatch(&mut self, rank: usize, task: MicrobatchTask) -> bool {
        match task.op() {
            op if op.is_transfer() => self.transfer(rank, task),
            op if op.is_piece() => self.piece(rank, task),
            op if op.is_rank_collective() => self.start_round(rank, task),
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
        let Some(needs) = self.needs_of_both(tasks) else { return false };
        self.compute(rank, action, &tasks, &needs, seconds);
        true
    }

    /// Returns true if a fused action may begin: a forward and a backward await the inputs of both.
    fn can_begin(&mut self, tasks: [MicrobatchTask; 2]) -> bool {
        let [first, second] = tasks.map(|task| task.op());
        let awaits_both = first == Op::Forward && second.gives_input_gradient()
            || second == Op::Forward && first.gives_input_gradient();
        !awaits_both || self.needs_of_both(tasks).is_some()
    }

    /// The arrivals of the inputs of both parts of a fused action, once both have been made.
    fn needs_of_both(&mut self, [first, second]: [MicrobatchTask; 2]) -> Option<[Arrival; 2]> {
        let arrival = self.needs(first).ok()?;
        // A fused action means its tasks one after the other, so the second may use the result of the first.
        let own = self.at(first.stage(), first.microbatch());
        let before = std::mem::replace(&mut self.outputs[own], arrival.arrived);
        let then = self.needs(second);
        self.outputs[own] = before;
        Some([arrival, then.ok()?])
    }

    /// Runs one computation, or two fused ones, with inputs that arrive as given.
    fn compute(&mut self, rank: usize, action: Action, tasks: &[MicrobatchTask], needs: &[Arrival], seconds: f64) {
        let run = self.occupy(rank, action, needs, seconds);
        self.hold(run, tasks, needs);
        tasks.iter().for_each(|&task| self.finish(rank, task, run.end));
    }

    /// Keeps a rank busy for this many seconds once the inputs have arrived.
    pub(super) fn occupy(&mut self, rank: usize, action: Action, needs: &[Arrival], seconds: f64) -> Run {
        let state = &mut self.ranks[rank];
        if let Some(last) = needs.iter().max_by(|a, b| a.made.total_cmp(&b.made)) {
            state.idle_until(last.made, last.cause);
        }
        for need in needs {
            state.idle_until(need.arrived, IdleCause::Transfer);
        }
        let (start, end) = (state.clock, state.clock + seconds);
        state.clock = end;
        state.busy += seconds;
        state.first.get_or_insert(start);
        state.last = end;
        self.events.push(Event { rank, action, start, end });
        Run { rank, start, end }
    }

    /// Records the result of a computation.
    fn finish(&mut self, rank: usize, task: MicrobatchTask, end: f64) {
        let (stage, placement) = (task.stage(), self.plan.placement());
        let own = self.at(stage, task.microbatch());
        let (to, table) = match task.op() {
            Op::Forward => (placement.next(stage), &mut self.outputs),
            Op::BackwardInput | Op::Backward => (stage.previous(), &mut self.gradients),
            _ => return,
        };
        table[own] = end;
        if let Some(target) = to.map(|to| placement.rank_of(to)).filter(|&target| target != rank && !self.lowered) {
            self.wake(target);
        }
    }
}
