//! Backwards without the gradients of some outputs: those that nothing downstream used.
//!
//! Guarantees: what depends on such outputs alone has no gradient, so that no zeros reach an optimizer. A microbatch
//! whose forward has run already goes on.
//!
//! 1. Which gradients are absent is known when a backward comes, and may differ from microbatch to microbatch. For each
//!    set of them the stage is captured once more, without them, on zeros of the specs that the first capture was made
//!    for. So nothing is computed for an output without a gradient.
//! 2. Tensors are numbered in order of appearance, and a backward comes after the forward: so both captures name the
//!    forward's tensors alike, and an interpreter that ran the first one's forward can run the second one's backward.
//! 3. That is checked: both forwards must be the same operations on the same tensors. They are not where a forward does
//!    not do the same twice (it counts its calls, say). The microbatches under way then run the first capture's backward
//!    with zeros in these places, and what no other gradient leads to is left out. Later ones run the plain way: a stage
//!    that is not the same twice is not replayed. Where a plain run was ruled out, that is an error.

use super::engine::Captured;
use super::microbatch_run::{MicrobatchRun, Replayable};
use super::parameters::Parameters;
use super::record::{Refusal, record};
use crate::stage::Stage;
use crate::stage::error::StageError;
use std::sync::Arc;

const DIFFERS: &str = "its forward is not the same operations each time, or its backward without the gradients of outputs that nobody uses needs what its forward has let go of";

impl<M: Stage> Captured<M> {
    /// A microbatch on its way to a backward without the gradients of the outputs at these places.
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

    /// The programs without these gradients; `None`, and no more replays of this form, where they are not alike.
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
                tracing::info!(?absent, "stage captured without the gradients of outputs that nobody uses");
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
        tracing::warn!(?absent, reason, "stage is not replayed any more: its backward is not split");
        self.known.insert(stage.signature.clone(), Err(reason));
        Ok(None)
    }
}
