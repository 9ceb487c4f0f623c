//! Fused actions, interleaved: a forward and a backward whose operations are submitted to the device alternately.
//!
//! 1. The inputs of both parts are awaited. A checked plan posts both receives before the fused action, so this
//!    does not wait for anything that the action itself makes.
//! 2. Both stages begin. A stage that was not captured runs its whole part at once; the other part then follows.
//! 3. If both parts come in pieces, the next piece always comes from the part with less progress, so both end
//!    together. The timeline shows one event for both.
//!
//! [`FusedActions`] says when, and why.

use super::error::ExecuteError;
use super::executor::Executor;
use super::options::FusedActions;
use super::run_state::RunState;
use crate::payload::is_cubecl;
use crate::stage::{Direction, Started};
use burn_pipeline_plan::plan::{Action, MicrobatchTask, Op};

/// The two parts of a fused action.
#[derive(Clone, Copy)]
pub(super) struct Fused {
    action: Action,
    forward: MicrobatchTask,
    backward: MicrobatchTask,
}

impl Fused {
    /// Returns a forward fused with a backward; `None` for every other action.
    pub(super) fn of(action: &Action) -> Option<Self> {
        let Action::Overlap(a, b) = *action else { return None };
        let (forward, backward) = if a.op() == Op::Forward { (a, b) } else { (b, a) };
        let fits = forward.op() == Op::Forward && backward.op().is_backward();
        fits.then_some(Self { action: *action, forward, backward })
    }
}

impl Executor {
    /// Returns true if fused actions are interleaved on this rank. They are not if a tensor-parallel group holds
    /// its stages, or replicas exchange tensors inside of them: all ranks would have to meet the collectives of a
    /// forward and a backward in one order, but the members' graphs may differ between these.
    pub(super) fn interleaves(&self) -> bool {
        if self.groups.members.size() > 1 || self.groups.replicas.cuts_any(self.parameters()) {
            return false;
        }
        match self.options.tuning.fused {
            FusedActions::Sequence => false,
            FusedActions::Interleave => true,
            FusedActions::Auto => is_cubecl(&self.device),
        }
    }

    pub(super) fn run_interleaved(&mut self, state: &mut RunState<'_>, fused: Fused) -> Result<(), ExecuteError> {
        let Fused { forward, backward, .. } = fused;
        self.start(state, backward.into())?;
        self.start(state, forward.into())?;
        let forward_call = self.forward_call(state, forward)?;
        let backward_call = self.backward_call(state, backward)?;
        let _span =
            tracing::trace_span!("fused", rank = self.rank(), cell = state.position, %forward, %backward).entered();
        state.started = state.now();
        let begun = self.caught(forward.stage(), forward, |stage| stage.start_forward(forward_call))?;
        let forward_pieces = begun.pieces();
        if let Started::Finished(done) = begun {
            self.synchronize(forward)?;
            self.store_forward(state, forward, done.parts())?;
            state.record(self.rank(), forward.into(), state.started);
            state.started = state.now();
        }
        let begun = self.caught(backward.stage(), backward, |stage| stage.start_backward(backward_call))?;
        let both = forward_pieces.zip(begun.pieces());
        if let Some((forwards, backwards)) = both {
            self.alternate((forward, forwards), (backward, backwards))?;
        }
        if both.is_some() {
            self.end_forward(state, forward)?;
        }
        let done = match begun {
            Started::Finished(done) => {
                self.synchronize(backward)?;
                done
            }
            Started::Pieces(_) => self.guarded(backward, |stage| stage.complete_backward())?,
        };
        self.store_backward(state, backward, done)?;
        let action = if both.is_some() { fused.action } else { backward.into() };
        state.record(self.rank(), action, state.started);
        if forward_pieces.is_some() && both.is_none() {
            // The backward ran at once, so the forward runs after it.
            state.started = state.now();
            self.end_forward(state, forward)?;
            state.record(self.rank(), forward.into(), state.started);
        }
        state.count_held(&self.stages);
        self.advance(state)?;
        Ok(())
    }

    /// Runs the pieces that are left of a forward.
    fn end_forward(&mut self, state: &mut RunState<'_>, forward: MicrobatchTask) -> Result<(), ExecuteError> {
        let done = self.guarded(forward, |stage| stage.engine_mut().complete_forward())?;
        self.store_forward(state, forward, done.parts())
    }

    /// Runs the pieces of a forward and a backward alternately, until one part is done.
    fn alternate(
        &mut self,
        (forward, forwards): (MicrobatchTask, usize),
        (backward, backwards): (MicrobatchTask, usize),
    ) -> Result<(), ExecuteError> {
        let (mut forwards_done, mut backwards_done) = (0, 0);
        while forwards_done < forwards && backwards_done < backwards {
            // Compares `done / all` of both parts without division.
            if forwards_done * backwards <= backwards_done * forwards {
                forwards_done += 1;
                self.caught(forward.stage(), forward, |stage| stage.engine_mut().advance(Direction::Forward))?;
            } else {
                backwards_done += 1;
                self.caught(backward.stage(), backward, |stage| stage.engine_mut().advance(Direction::Backward))?;
            }
        }
        Ok(())
    }
}
