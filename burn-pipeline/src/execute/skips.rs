//! Values that go past a neighbour, on a rank: joined to a stage's input, taken off its output, and their gradients
//! the other way round.
//!
//! Guarantees: a stage sees one input and one list of gradients, whatever edges end at it; each value is moved, used
//! once, and gone, like a neighbour's.
//!
//! 1. `F` takes the values of all edges that end at its stage, in the order of their stages, and joins them to the
//!    neighbour's; how many tensors each piece holds is noted for the way back.
//! 2. What `F` puts out is cut at its marks: one piece for the next stage, one for each edge that starts there.
//! 3. `I` or `B` joins the gradients of these pieces alike, and cuts the input's gradients by the numbers noted.

use super::interpreter::Executor;
use super::run_state::RunState;
use super::{ExecuteError, values};
use crate::link::{Activity, Direction, Header};
use crate::plan::{MicrobatchTask, Op, Placement, Plan, StageId, Task};
use crate::stage::{Boundary, Gradients, Payload, StageError};

/// The stages at the other ends of a stage's edges, in order: those that lead to it, or those that start there.
pub(super) fn peers(plan: &Plan, stage: StageId, into: bool) -> Vec<StageId> {
    let edges = plan.skips().iter();
    let ends = edges.filter_map(|edge| match into {
        true => (edge.to == stage.index()).then_some(edge.from),
        false => (edge.from == stage.index()).then_some(edge.to),
    });
    ends.map(|index| StageId::in_replica(stage.replica(), index)).collect()
}

/// The header of the message that a transfer past a neighbour is about.
pub(super) fn header(task: MicrobatchTask) -> Option<Header> {
    let peer = task.skip_peer()?;
    let (to, from) = if task.op().is_send() { (peer, task.stage()) } else { (task.stage(), peer) };
    Some(towards(to, from, task.microbatch(), matches!(task.op(), Op::SendForward | Op::ReceiveForward)))
}

pub(super) fn towards(stage: StageId, from: StageId, microbatch: usize, forward: bool) -> Header {
    let from = from.index();
    let direction = if forward { Direction::Skip { from } } else { Direction::SkipGradient { from } };
    Header { stage, microbatch, direction }
}

impl Executor {
    /// The input of a stage with all that comes past its neighbour.
    pub(super) fn join_input(
        &mut self,
        state: &mut RunState<'_>,
        plan: &Plan,
        task: MicrobatchTask,
        input: Payload,
    ) -> Result<Payload, ExecuteError> {
        let peers = peers(plan, task.stage(), true);
        if peers.is_empty() {
            return Ok(input);
        }
        let mut counts = vec![input.tensors().count()];
        let mut pieces = Vec::with_capacity(peers.len());
        for peer in peers {
            let piece = self.take_past(state, plan, task, peer)?;
            counts.push(piece.tensors().count());
            pieces.push(piece);
        }
        if state.run.train {
            state.pieces.insert((task.stage(), task.microbatch()), counts);
        }
        Ok(input.join_skips(pieces))
    }

    /// Keeps what goes past the next stage for those that it is for, and returns the rest.
    pub(super) fn split_output(
        &mut self,
        state: &mut RunState<'_>,
        plan: &Plan,
        task: MicrobatchTask,
        output: Payload,
    ) -> Result<Payload, ExecuteError> {
        let (output, pieces) = output.split_skips();
        let stage = task.stage();
        let peers = peers(plan, stage, false);
        if peers.len() != pieces.len() {
            let (got, expected) = (pieces.len(), peers.len());
            return Err(self.stage_error(task, StageError::SkipCount { got, expected }));
        }
        for (peer, piece) in peers.into_iter().zip(pieces) {
            let most = state.outcome.skip_bytes.entry(stage).or_default();
            *most = piece.bytes().max(*most);
            state.values.keep(
                plan.placement(),
                self.grid().pipeline_rank(),
                towards(peer, stage, task.microbatch(), true),
                piece,
            );
        }
        Ok(output)
    }

    /// Adds the gradients of what went past the next stage to those of what went to it.
    pub(super) fn join_gradients(
        &mut self,
        state: &mut RunState<'_>,
        plan: &Plan,
        task: MicrobatchTask,
        mut gradients: Gradients,
    ) -> Result<Gradients, ExecuteError> {
        for peer in peers(plan, task.stage(), false) {
            let payload = self.take_past(state, plan, task, peer)?;
            let read = Gradients::from_payload(payload).map_err(StageError::Input);
            gradients.extend(read.map_err(|source| self.stage_error(task, source))?);
        }
        Ok(gradients)
    }

    /// Keeps the gradients of what came past the neighbour for those who made it, and returns the rest.
    pub(super) fn split_gradients(
        &mut self,
        state: &mut RunState<'_>,
        plan: &Plan,
        task: MicrobatchTask,
        mut gradients: Gradients,
    ) -> Gradients {
        let stage = task.stage();
        let Some(counts) = state.pieces.remove(&(stage, task.microbatch())) else { return gradients };
        let mut rest = gradients.split_off(counts[0].min(gradients.len()));
        for (peer, count) in peers(plan, stage, true).into_iter().zip(&counts[1..]) {
            let after = rest.split_off((*count).min(rest.len()));
            let header = towards(peer, stage, task.microbatch(), false);
            let piece = std::mem::replace(&mut rest, after).into_payload();
            state.values.keep(plan.placement(), self.grid().pipeline_rank(), header, piece);
        }
        gradients
    }

    /// Waits until what a receive past a neighbour asked for is in the inbox.
    pub(super) fn arrive_past(
        &mut self,
        state: &mut RunState<'_>,
        placement: &Placement,
        wait: MicrobatchTask,
    ) -> Result<(), ExecuteError> {
        let asked = wait.awaits().and_then(header).zip(wait.skip_peer());
        let (header, peer) = asked.ok_or_else(|| self.no_input(wait))?;
        let (from, deadline) = (self.grid().rank_of(placement.rank_of(peer)), self.deadline());
        let here = self.arrive_from(state, wait, header, from, deadline)?;
        self.link().announce(Activity::Task(wait.into()));
        if here { Ok(()) } else { Err(self.no_input(wait)) }
    }

    /// Waits for what comes from a stage past the neighbour.
    fn take_past(
        &mut self,
        state: &mut RunState<'_>,
        plan: &Plan,
        task: MicrobatchTask,
        peer: StageId,
    ) -> Result<Payload, ExecuteError> {
        let forward = task.op() == Op::Forward;
        let (from, deadline) = (self.grid().rank_of(plan.placement().rank_of(peer)), self.deadline());
        let header = towards(task.stage(), peer, task.microbatch(), forward);
        let start = state.run.began.elapsed();
        self.arrive_from(state, task, header, from, deadline)?;
        let taken = state.values.take(header).ok_or_else(|| self.no_input(task))?;
        self.link().announce(Activity::Task(task.into()));
        if from != self.rank() {
            let op = if forward { Op::ReceiveForward } else { Op::ReceiveBackward };
            let receive = Task::skip(task.stage(), op, task.microbatch(), peer.index());
            state.note(self.rank(), receive.into(), start);
        }
        state.started = state.run.began.elapsed();
        Ok(taken)
    }
}

/// The header under which a task's product, or a send's message, reaches the stage that it is for.
pub(super) fn outgoing(placement: &Placement, task: MicrobatchTask) -> Option<Header> {
    header(task).or_else(|| values::produced(placement, task))
}
