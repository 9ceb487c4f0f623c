//! Compute tasks: `F`, `I`, `B`, and `W` where it is the whole backward.
//!
//! Each part of a task is a separate method (await the inputs, run, store the outputs), because a fused action runs
//! the parts of two tasks in another order; see `interleave.rs`.

use super::batch_gradients::wanted;
use super::error::ExecuteError;
use super::executor::Executor;
use super::run_state::RunState;
use super::transfer::along;
use crate::link::Link;
use crate::payload::{Boundary, Payload, PayloadPart, StagePort};
use crate::stage::{BackwardCall, ForwardCall, Gradients, LOSS_SEED, LossPart, StageError, loss_seed};
use burn_pipeline_plan::plan::{MicrobatchTask, Op};

impl Executor {
    pub(super) fn forward(&mut self, state: &mut RunState<'_>, task: MicrobatchTask) -> Result<(), ExecuteError> {
        let call = self.forward_call(state, task)?;
        let made = if state.run.trains() {
            self.guarded(task, |stage| stage.forward(call))?.parts()
        } else {
            let (output, loss) = self.guarded(task, |stage| stage.evaluate(call))?;
            (Some(output), loss)
        };
        self.store_forward(state, task, made)
    }

    pub(super) fn backward(&mut self, state: &mut RunState<'_>, task: MicrobatchTask) -> Result<(), ExecuteError> {
        let call = self.backward_call(state, task)?;
        let gradients = self.guarded(task, |stage| stage.backward(call))?;
        self.store_backward(state, task, gradients)
    }

    /// Awaits the input of a forward and collects its stage's other inputs.
    pub(super) fn forward_call(
        &mut self,
        state: &mut RunState<'_>,
        task: MicrobatchTask,
    ) -> Result<ForwardCall, ExecuteError> {
        let (stage, index) = (task.stage(), state.index(task));
        let input = match stage.previous() {
            None if self.has_parallel_embedding() => self.embedded(state, task)?,
            None => {
                let input = self.link.to_device(state.run.batch.input(index));
                state.note(task, "input", None, &input);
                input
            }
            Some(_) => self.take(state, task, None)?,
        };
        let input = self.join_input(state, task, input)?;
        if state.run.trains() {
            self.check_spec(task, StagePort::Input, || input.clone())?;
        }
        // A vocabulary-parallel head comes after the last stage, with the loss.
        let ends_route = state.plan().placement().next(stage).is_none() && !self.has_parallel_head();
        let (extra, extra_gradients) = self.extra(state, task)?;
        if extra.parts().next().is_some() {
            state.note(task, "extras", None, &extra);
        }
        let target = if ends_route { state.run.batch.target(index) } else { None };
        let target = target.map(|target| self.link.to_device(target));
        if let Some(target) = &target {
            state.note(task, "target", None, target);
        }
        // Up to the first stage that trains, nobody uses the gradient of the input, unless the caller does.
        let wants_input_gradient =
            stage.index() > state.plan().first_trained() || self.has_parallel_embedding() || self.wants_of_batch(state);
        let microbatch = index;
        Ok(ForwardCall { microbatch, input, extra, target, ends_route, wants_input_gradient, extra_gradients })
    }

    /// A stage's inputs besides the activations: pieces of the batch and, if it requests it, the loss's seed. Also
    /// returns which of their gradients are wanted.
    fn extra(&self, state: &mut RunState<'_>, task: MicrobatchTask) -> Result<(Payload, Vec<bool>), ExecuteError> {
        let (rank, stage, batch, index) = (self.rank(), task.stage(), state.run.batch, state.index(task));
        let held = self.stages.get(&stage).ok_or(ExecuteError::NoStage { rank, stage })?;
        let (mut parts, mut counts, mut gradients) = (Vec::new(), Vec::new(), Vec::new());
        for name in held.extras() {
            let extra = if name == LOSS_SEED {
                let seed = state.run.seeding.seed(batch, index);
                Payload::from_parts([PayloadPart::Tensor(loss_seed(seed, &self.device))])
            } else {
                let piece = batch.extra(stage.index(), &[name], index);
                self.link.to_device(piece.map_err(|source| ExecuteError::Batch { rank, source })?)
            };
            let before = gradients.len();
            gradients.extend(wanted(name, &extra));
            counts.push((name, gradients.len() - before));
            parts.extend(extra.into_parts());
        }
        if !self.wants_of_batch(state) {
            return Ok((Payload::from_parts(parts), Vec::new()));
        }
        state.extra_counts.insert((stage, task.microbatch()), counts);
        Ok((Payload::from_parts(parts), gradients))
    }

    /// Stores the results of a forward: its output for the next stage, its loss for the end of the row.
    pub(super) fn store_forward(
        &mut self,
        state: &mut RunState<'_>,
        task: MicrobatchTask,
        (output, loss): (Option<Payload>, Option<LossPart>),
    ) -> Result<(), ExecuteError> {
        let made = output.iter().flat_map(|output| output.tensors());
        self.refuse_unwritten(task, made.chain(loss.iter().flat_map(|loss| loss.tensors())))?;
        if task.stage().index() < state.plan().first_trained()
            && let Some(held) = self.stages.get_mut(&task.stage())
        {
            // No backward will use what the engine holds.
            held.engine_mut().clear();
        }
        if let (true, Some(output)) = (state.run.trains(), &output) {
            self.check_spec(task, StagePort::Output, || output.clone())?;
        }
        if let Some(mut loss) = loss {
            state.outcome.outputs.extend(loss.output.take().map(|output| (state.index(task), output)));
            state.losses.insert(state.index(task), (task, loss));
        }
        let Some(output) = output else { return Ok(()) };
        let output = self.split_output(state, task, output)?;
        if state.plan().placement().next(task.stage()).is_none() {
            if self.gives_hidden(state, task, &output) {
                state.outcome.outputs.push((state.index(task), output));
            }
            return Ok(());
        }
        let bytes = state.outcome.measured.message_bytes.entry(task.stage()).or_default();
        *bytes = output.bytes().max(*bytes);
        self.store(state, task, along(task, Op::SendForward, None), output)
    }

    /// Awaits the gradients that a backward starts from.
    pub(super) fn backward_call(
        &mut self,
        state: &mut RunState<'_>,
        task: MicrobatchTask,
    ) -> Result<BackwardCall, ExecuteError> {
        let seeds = self.seeds(state, task)?;
        Ok(BackwardCall { microbatch: state.index(task), seeds, whole: task.op() != Op::BackwardInput })
    }

    /// Awaits the gradients of a stage's outputs. On a stage that ends its route that is the loss's seed.
    fn seeds(&mut self, state: &mut RunState<'_>, task: MicrobatchTask) -> Result<Gradients, ExecuteError> {
        match state.plan().placement().next(task.stage()) {
            None if self.has_parallel_head() => return self.hidden_gradient(state, task),
            None => return Ok(vec![Some(self.loss_seed(state, task)?)]),
            Some(_) => {}
        }
        let payload = self.take(state, task, None)?;
        let seeds = self.as_gradients(task, payload)?;
        let seeds = self.join_gradients(state, task, seeds)?;
        self.check_spec(task, StagePort::OutputGradient, || seeds.clone().into_payload())?;
        Ok(seeds)
    }

    /// Stores the gradients of a stage's input for the previous stage.
    pub(super) fn store_backward(
        &mut self,
        state: &mut RunState<'_>,
        task: MicrobatchTask,
        gradients: Gradients,
    ) -> Result<(), ExecuteError> {
        self.refuse_unwritten(task, gradients.iter().flatten())?;
        let gradients = self.keep_of_batch(state, task, gradients);
        self.check_spec(task, StagePort::InputGradient, || gradients.clone().into_payload())?;
        let gradients = self.split_gradients(state, task, gradients)?;
        if task.stage().index() > state.plan().first_trained() {
            self.store(state, task, along(task, Op::SendBackward, None), gradients.into_payload())?;
        } else if self.has_parallel_embedding() {
            state.vocabulary.give(task.with(task.stage(), Op::BroadcastGradient), gradients.into_payload());
        }
        Ok(())
    }

    /// Reads the gradients that another stage sent.
    pub(super) fn as_gradients(&self, task: MicrobatchTask, payload: Payload) -> Result<Gradients, ExecuteError> {
        Gradients::from_payload(payload).map_err(|error| self.stage_error(task, StageError::Input(error)))
    }
}
