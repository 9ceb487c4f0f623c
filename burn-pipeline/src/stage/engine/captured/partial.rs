//! Backwards without the gradients of outputs that nothing downstream used.
//!
//! Guarantees: a parameter or input that influences such outputs alone gets no gradient, rather than zeros that an
//! optimizer would step with. Microbatches whose forward has run already are finished.
//!
//! 1. The set of absent gradients is known when a backward starts, and may differ between microbatches. For each set the
//!    stage is captured once more, on zeros of the first capture's signature, without these gradients. So nothing is
//!    computed for an output without a gradient.
//! 2. Burn numbers tensors in order of appearance, and the backward is recorded after the forward. So both captures give
//!    the forward's tensors the same numbers, and an interpreter that ran the first capture's forward can run the second
//!    one's backward.
//! 3. This is checked: both forwards must be the same operations on the same tensors. A forward that differs from call to
//!    call (it counts its calls, say) fails the check. Microbatches under way then run the first capture's backward with
//!    zeros, and results that depend on zeros alone are dropped. Later ones run eagerly, or fail where
//!    [`SplitBackward::Captured`](crate::stage::SplitBackward::Captured) was asked for.

use super::engine::Captured;
use super::microbatch_run::{MicrobatchRun, Replayable};
use super::parameters::Parameters;
use super::record::{Refusal, record};
use crate::stage::Stage;
use crate::stage::error::StageError;
use std::sync::Arc;

const DIFFERS: &str = "its forward is not the same operations each time, or its backward without the gradients of unused outputs reads what its forward has released";

impl<M: Stage> Captured<M> {
    /// The microbatch, to go on with a backward without the gradients of the outputs at these places.
    pub(super) fn without(
        &mut self,
        module: &M,
        run: MicrobatchRun,
        absent: Vec<usize>,
    ) -> Result<MicrobatchRun, StageError> {
        let key = (run.stage.signature.clone(), absent);
        let stage = match self.partial.get(&key) {
            Some(known) => known.clone(),
            None => {
                let found = self.capture_without(module, &run, &key.1)?;
                self.partial.insert(key.clone(), found.clone());
                found
            }
        };
        Ok(match stage {
            Some(stage) => run.with_backward(stage),
            None => run.without(&key.1),
        })
    }

    /// The programs without these gradients; `None`, and no more replays for this signature, if the captures differ.
    fn capture_without(
        &mut self,
        module: &M,
        run: &MicrobatchRun,
        absent: &[usize],
    ) -> Result<Option<Arc<Replayable>>, StageError> {
        let stage = &run.stage;
        let parameters = Parameters::of(module);
        let call = stage.signature.call(run.device());
        let reason = match record(&mut self.capture, &self.function, module, &call, &parameters, absent) {
            Ok((programs, ..)) if programs.continues(&stage.programs) => {
                tracing::info!(?absent, "stage captured without the gradients of unused outputs");
                let (output, parameters, constants) =
                    (stage.output.clone(), stage.parameters.clone(), stage.constants.clone());
                let (programs, signature) = (Arc::new(programs), stage.signature.clone());
                return Ok(Some(Arc::new(Replayable { programs, output, parameters, constants, signature })));
            }
            Ok(_) => DIFFERS.to_owned(),
            Err(Refusal::Stage(error)) => error.to_string(),
            Err(Refusal::Cannot(reason)) => reason,
        };
        if self.strict {
            return Err(StageError::Unsupported(format!("the stage cannot be captured: {reason}")));
        }
        tracing::warn!(?absent, reason, "stage is no longer replayed: its backward is not split");
        self.known.insert(stage.signature.clone(), Err(reason));
        Ok(None)
    }
}
