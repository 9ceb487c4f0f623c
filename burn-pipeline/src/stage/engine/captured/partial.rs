//! Backwards without the gradients of outputs that nothing downstream used.
//!
//! Guarantees: a parameter or input that influences such outputs alone gets no gradient, rather than zeros that an
//! optimizer would step with. Microbatches whose forward has run already are finished.
//!
//! 1. The set of absent gradients is known when a backward starts, and may differ between microbatches. For each set the
//!    stage is recorded once more, on zeros of the first recording's signature, without these gradients. So nothing is
//!    computed for an output without a gradient, and gradients are added in autodiff's order.
//! 2. Tensors are numbered in order of appearance, and the backward is recorded after the forward. So both recordings give
//!    the forward's tensors the same numbers, and an interpreter that ran the first one's forward can run the second one's
//!    backward. This is checked: both forwards must be the same operations on the same tensors with the same scalars.
//! 3. Where the forward is another one by then (it counts its calls, say), the backward is cut from the microbatch's own
//!    recording (`Recording::without`): the same gradients, perhaps added in another order.
//! 4. Where a recording cannot be cut (an operation joins gradients of several outputs otherwise than by a sum), the whole
//!    backward runs with zeros, and results that depend on zeros alone are dropped.

use super::engine::Captured;
use super::microbatch_run::MicrobatchRun;
use super::replayable::Replayable;
use crate::program::StagePrograms;
use crate::stage::Stage;
use crate::stage::engine::recording::{Parameters, record};
use std::sync::{Arc, PoisonError};

impl<M: Stage> Captured<M> {
    /// The microbatch, to go on with a backward without the gradients of the outputs at these places.
    pub(super) fn without(&mut self, module: &M, run: MicrobatchRun, absent: Vec<usize>) -> MicrobatchRun {
        let whole = run.stage.clone();
        let known = || whole.partial.lock().unwrap_or_else(PoisonError::into_inner);
        let found = known().get(&absent).cloned();
        let part = found.unwrap_or_else(|| {
            let made = self.recorded_without(module, &run, &absent).or_else(|| cut(&whole, &absent));
            known().insert(absent.clone(), made.clone());
            made
        });
        match part {
            Some(part) => run.with_backward(part),
            None => run.with_zeros(&absent),
        }
    }

    /// The programs of another recording without these gradients; `None` if its forward is not the microbatch's.
    fn recorded_without(&mut self, module: &M, run: &MicrobatchRun, absent: &[usize]) -> Option<Arc<Replayable>> {
        let (whole, parameters) = (&run.stage, Parameters::of(module));
        let call = whole.signature.call(run.device());
        let recorded = record(&mut self.capture, &self.function, module, &call, &parameters, absent).ok()?;
        let programs = StagePrograms::new(&recorded.recording);
        let same = recorded.recording.has_forward_of(&whole.recording, programs.forward(), whole.programs.forward());
        (same && !recorded.changes_buffers && programs.continues(&whole.programs)).then(|| {
            tracing::info!(?absent, "stage captured without the gradients of unused outputs");
            Arc::new(whole.with_programs(Arc::new(programs)))
        })
    }
}

/// Programs cut from the same recording.
fn cut(whole: &Replayable, absent: &[usize]) -> Option<Arc<Replayable>> {
    let programs = StagePrograms::new(&whole.recording.without(absent)?);
    programs.continues(&whole.programs).then(|| Arc::new(whole.with_programs(Arc::new(programs))))
}
