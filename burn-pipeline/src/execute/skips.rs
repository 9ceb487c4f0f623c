//! Skip edges: values that a stage passes to a later stage than the next one.
//!
//! Guarantees: a stage sees one input and one list of gradients, whatever edges end at it; each value is moved,
//! used once, and dropped, like a value of a neighbouring stage.
//!
//! 1. `F` takes the values of all edges that end at its stage, in the order of their stages, and joins them to the
//!    input from the previous stage. It stores the number of tensors in each piece for the backward.
//! 2. The output of `F` is cut at its marks: one piece for the next stage, one for each edge that starts at the
//!    stage.
//! 3. `I` or `B` joins the gradients of these pieces in the same order, and cuts the input's gradients by the
//!    numbers of step 1. Stages before the first one that trains get none.

use super::error::ExecuteError;
use super::executor::Executor;
use super::recut::Recut;
use super::run_state::RunState;
use super::transfer::{Transfer, along, skip_peers};
use crate::payload::{Boundary, Payload};
use crate::stage::{Gradients, StageError};
use burn_pipeline_plan::plan::{MicrobatchTask, Op, Task};

impl Executor {
    /// Joins the values of all edges that end at a stage to its input.
    pub(super) fn join_input(
        &mut self,
        state: &mut RunState<'_>,
        task: MicrobatchTask,
        input: Payload,
    ) -> Result<Payload, ExecuteError> {
        let peers = skip_peers(state.plan(), task.stage(), true);
        if peers.is_empty() {
            return Ok(input);
        }
        let mut counts = vec![input.tensors().count()];
        let mut pieces = Vec::with_capacity(peers.len());
        for peer in peers {
            let piece = self.take(state, task, Some(peer))?;
            counts.push(piece.tensors().count());
            pieces.push(piece);
        }
        if state.run.trains() {
            state.input_counts.insert((task.stage(), task.microbatch()), counts);
        }
        Ok(input.join_skips(pieces))
    }

    /// Stores the values of all edges that start at the stage, and returns the rest of its output.
    pub(super) fn split_output(
        &mut self,
        state: &mut RunState<'_>,
        task: MicrobatchTask,
        output: Payload,
    ) -> Result<Payload, ExecuteError> {
        let (output, pieces) = output.split_skips();
        let stage = task.stage();
        let peers = skip_peers(state.plan(), stage, false);
        if peers.len() != pieces.len() {
            let (got, expected) = (pieces.len(), peers.len());
            return Err(self.stage_error(task, StageError::SkipCount { got, expected }));
        }
        for (peer, piece) in peers.into_iter().zip(pieces) {
            let most = state.outcome.measured.skip_bytes.entry(stage).or_default();
            *most = piece.bytes().max(*most);
            self.store(state, task, along(task, Op::SendForward, Some(peer)), piece)?;
        }
        Ok(output)
    }

    /// Joins the gradients of all edges that start at a stage to those of its output.
    pub(super) fn join_gradients(
        &mut self,
        state: &mut RunState<'_>,
        task: MicrobatchTask,
        mut gradients: Gradients,
    ) -> Result<Gradients, ExecuteError> {
        for peer in skip_peers(state.plan(), task.stage(), false) {
            let payload = self.take(state, task, Some(peer))?;
            gradients.extend(self.as_gradients(task, payload)?);
        }
        Ok(gradients)
    }

    /// Stores the gradients of all edges that end at the stage, and returns the rest of the input's gradients.
    pub(super) fn split_gradients(
        &mut self,
        state: &mut RunState<'_>,
        task: MicrobatchTask,
        mut gradients: Gradients,
    ) -> Result<Gradients, ExecuteError> {
        let (stage, microbatch) = (task.stage(), task.microbatch());
        let Some(counts) = state.input_counts.remove(&(stage, microbatch)) else { return Ok(gradients) };
        let mut rest = gradients.split_off(counts[0].min(gradients.len()));
        for (peer, count) in skip_peers(state.plan(), stage, true).into_iter().zip(&counts[1..]) {
            let after = rest.split_off((*count).min(rest.len()));
            let piece = std::mem::replace(&mut rest, after).into_payload();
            if peer.index() < state.plan().first_trained() {
                continue;
            }
            self.store(state, task, along(task, Op::SendBackward, Some(peer)), piece)?;
        }
        Ok(gradients)
    }

    /// Stores the output of a task for the stage that uses it: in the inbox if that stage is on this rank, else in
    /// the outbox, as the messages to the receiving ranks. `send` is the transfer that then carries it.
    pub(super) fn store(
        &self,
        state: &mut RunState<'_>,
        task: MicrobatchTask,
        send: Task,
        payload: Payload,
    ) -> Result<(), ExecuteError> {
        let Some(Transfer { header, peer, .. }) = Transfer::of(state.plan().placement(), send) else { return Ok(()) };
        let grid = self.grid();
        if peer == grid.pipeline_rank() {
            state.values.keep(self.rank(), header, payload);
            return Ok(());
        }
        let (recut, cuts) = (Recut::between(&grid, grid.pipeline_rank(), peer), state.cuts.remove(&header));
        let messages = recut.messages(grid.member(), payload, cuts.as_deref(), state.compares);
        state.values.give(header, messages.map_err(|source| self.stage_error(task, source))?);
        Ok(())
    }
}
