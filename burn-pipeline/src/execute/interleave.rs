//! Fused actions, interleaved: a forward and a backward whose operations are handed to the device alternately.
//!
//! 1. Inputs of both parts are awaited. A checked plan posts both receives before the fused action, so this waits for
//!    nothing that the action itself would have to make.
//! 2. Both stages begin. One that was not captured does its work whole, right away; the other then follows whole.
//! 3. If both can be taken apart, the next operation always comes from the part of which less is done, so that both
//!    end together. The timeline shows one event for both.
//!
//! DualPipe's `overlapped_forward_backward` leaves this to the model's author; here it is done for any captured stage.

use super::ExecuteError;
use super::interpreter::Executor;
use super::run::FusedActions;
use super::run_state::RunState;
use crate::plan::{Action, MicrobatchTask, Op, Plan};
use crate::stage::{Direction, ForwardOutput, StageWork, WorkResult, WorkStarted};
use burn::tensor::Device;

/// The two parts of a fused action.
#[derive(Clone, Copy)]
pub(super) struct Fused {
    action: Action,
    forward: MicrobatchTask,
    backward: MicrobatchTask,
}

impl Fused {
    /// A forward fused with a backward; `None` for every other action.
    pub(super) fn of(action: &Action) -> Option<Self> {
        let Action::Overlap(a, b) = *action else { return None };
        let (forward, backward) = if a.op() == Op::Forward { (a, b) } else { (b, a) };
        let fits = forward.op() == Op::Forward && matches!(backward.op(), Op::Backward | Op::BackwardInput);
        fits.then_some(Self { action: *action, forward, backward })
    }
}

impl Executor {
    /// Are fused actions interleaved on this rank?
    pub(super) fn interleaves(&self) -> bool {
        match self.options.fused {
            FusedActions::Sequence => false,
            FusedActions::Interleave => true,
            FusedActions::Auto => computes_asynchronously(&self.device),
        }
    }

    pub(super) fn run_interleaved(
        &mut self,
        state: &mut RunState<'_>,
        plan: &Plan,
        fused: Fused,
    ) -> Result<(), ExecuteError> {
        let Fused { forward, backward, .. } = fused;
        self.start(state, backward.into())?;
        self.start(state, forward.into())?;
        let call = self.forward_call(state, plan, forward)?;
        let seeds = self.seeds(state, plan, backward)?;
        let index = state.run.index(backward.stage(), backward.microbatch());
        let work = match backward.op() {
            Op::BackwardInput => StageWork::BackwardInput(index, seeds),
            _ => StageWork::Backward(index, seeds),
        };
        let _span = tracing::trace_span!("fused", rank = self.link.rank(), %forward, %backward).entered();
        state.started = state.run.began.elapsed();
        let first = self.caught(forward, |stage| stage.begin_work(StageWork::Forward(call)))?;
        let whole = matches!(first, WorkStarted::Finished(_));
        let first = self.completed(state, plan, forward, first)?;
        let second = self.caught(backward, |stage| stage.begin_work(work))?;
        let both = first.zip(pieces(&second));
        if let Some((pieces, of)) = both {
            self.alternate([(forward, pieces), (backward, of)])?;
        }
        if !whole {
            let done = self.guarded(forward, |stage| stage.complete_work(Direction::Forward))?;
            self.keep(state, plan, forward, done)?;
            if both.is_none() {
                state.note(self.rank(), forward.into(), state.started);
            }
        }
        let done = match second {
            WorkStarted::Finished(done) => done,
            WorkStarted::Pieces(_) => self.guarded(backward, |stage| stage.complete_work(Direction::Backward))?,
        };
        self.keep(state, plan, backward, done)?;
        self.count_held(state);
        let action = if both.is_some() { fused.action } else { backward.into() };
        state.note(self.rank(), action, state.started);
        self.move_on(state)?;
        Ok(())
    }

    /// Keeps what a forward that could not be taken apart made; otherwise says how many pieces there are.
    fn completed(
        &mut self,
        state: &mut RunState<'_>,
        plan: &Plan,
        task: MicrobatchTask,
        begun: WorkStarted,
    ) -> Result<Option<usize>, ExecuteError> {
        match begun {
            WorkStarted::Pieces(pieces) => Ok(Some(pieces)),
            WorkStarted::Finished(done) => {
                self.synchronize(task)?;
                self.keep(state, plan, task, done)?;
                state.note(self.rank(), task.into(), state.started);
                state.started = state.run.began.elapsed();
                Ok(None)
            }
        }
    }

    fn keep(
        &mut self,
        state: &mut RunState<'_>,
        plan: &Plan,
        task: MicrobatchTask,
        done: WorkResult,
    ) -> Result<(), ExecuteError> {
        match done {
            WorkResult::Forward(ForwardOutput::Activations(output)) => {
                self.forwarded(state, plan, task, Some(output), None)
            }
            WorkResult::Forward(ForwardOutput::Loss(loss)) => self.forwarded(state, plan, task, None, Some(*loss)),
            WorkResult::Backward(gradients) => self.backwarded(state, plan, task, gradients),
        }
    }

    /// Runs the pieces of a forward and a backward alternately, until one is through.
    fn alternate(&mut self, [forward, backward]: [(MicrobatchTask, usize); 2]) -> Result<(), ExecuteError> {
        let (mut forwards, mut backwards) = (0, 0);
        while forwards < forward.1 && backwards < backward.1 {
            if forwards * backward.1 <= backwards * forward.1 {
                forwards += 1;
                self.caught(forward.0, |stage| stage.advance_work(Direction::Forward, 1))?;
            } else {
                backwards += 1;
                self.caught(backward.0, |stage| stage.advance_work(Direction::Backward, 1))?;
            }
        }
        Ok(())
    }
}

fn pieces(begun: &WorkStarted) -> Option<usize> {
    match begun {
        WorkStarted::Pieces(pieces) => Some(*pieces),
        WorkStarted::Finished(_) => None,
    }
}

/// Flex computes where it is called: there is nothing to overlap with.
fn computes_asynchronously(device: &Device) -> bool {
    #[cfg(feature = "flex")]
    let flex = matches!(device.clone().inner().as_dispatch(), burn::backend::DispatchDevice::Flex(_));
    #[cfg(not(feature = "flex"))]
    let flex = {
        let _ = device;
        false
    };
    !flex
}
