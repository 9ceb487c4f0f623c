//! What the engine of captured stages holds: programs by signature, and microbatches on their way through them.

use super::microbatch_run::{MicrobatchRun, Replayable};
use super::parameters::Parameters;
use super::record::{Refusal, record};
use super::running_program::RunningProgram;
use super::signature::Signature;
use crate::program::on_device;
use crate::stage::Stage;
use crate::stage::engine::call::ForwardCall;
use crate::stage::engine::eager::Eager;
use crate::stage::engine::function::StageFunction;
use crate::stage::error::StageError;
use burn::backend::ir::TensorId;
use burn::tensor::Device;
use std::collections::HashMap;
use std::sync::Arc;

/// Runs a stage from its captured programs; see the module's header.
pub(in crate::stage) struct Captured<M: Stage> {
    pub(super) function: StageFunction<M>,
    /// Fail instead of falling back?
    pub(super) strict: bool,
    pub(super) capture: Option<Device>,
    pub(super) known: HashMap<Signature, Result<Arc<Replayable>, String>>,
    /// The same without the gradients of some outputs; `None` if that capture differed.
    pub(super) partial: HashMap<(Signature, Vec<usize>), Option<Arc<Replayable>>>,
    pub(super) forwarded: HashMap<usize, MicrobatchRun>,
    pub(super) halfway: HashMap<usize, MicrobatchRun>,
    /// A forward and a backward that run in pieces.
    pub(super) forward: Option<RunningProgram>,
    pub(super) backward: Option<RunningProgram>,
    pub(super) eager: Eager,
}

impl<M: Stage> Captured<M> {
    /// A new engine; `strict` makes a refused capture an error.
    pub(in crate::stage) fn new(function: StageFunction<M>, strict: bool) -> Self {
        Self {
            function,
            strict,
            capture: None,
            known: HashMap::new(),
            partial: HashMap::new(),
            forwarded: HashMap::new(),
            halfway: HashMap::new(),
            forward: None,
            backward: None,
            // This engine is chosen where the plan splits, so a stage that cannot be captured may still defer.
            eager: Eager::default().deferring(true),
        }
    }

    /// The programs for a call: known, or captured now. The inner `Err` says why there are none.
    pub(super) fn programs_for(
        &mut self,
        function: &StageFunction<M>,
        module: &M,
        call: &ForwardCall,
        parameters: &Parameters,
    ) -> Result<Result<Arc<Replayable>, String>, StageError> {
        let signature = Signature::new(call, parameters);
        if let Some(known) = self.known.get(&signature) {
            return Ok(known.clone());
        }
        let began = std::time::Instant::now();
        let recorded = match module.skip_capture() {
            Some(reason) => Err(Refusal::Cannot(reason.to_owned())),
            None => record(&mut self.capture, function, module, call, parameters, &[]),
        };
        let found = match recorded {
            Ok((programs, output, device)) => {
                let constant = |(id, data): &(TensorId, _)| (*id, on_device(Clone::clone(data), &device));
                let constants = programs.constants.iter().map(constant).collect();
                let milliseconds = began.elapsed().as_secs_f64() * 1e3;
                let (deferrable, parameters) = (programs.deferrable(), parameters.ids());
                tracing::info!(milliseconds, deferrable, "stage captured: its backward is split");
                let (programs, signature) = (Arc::new(programs), signature.clone());
                Ok(Arc::new(Replayable { programs, output, parameters, constants, signature }))
            }
            Err(Refusal::Stage(error)) => return Err(error),
            Err(Refusal::Cannot(reason)) if self.strict => {
                return Err(StageError::Unsupported(format!("the stage cannot be captured: {reason}")));
            }
            Err(Refusal::Cannot(reason)) => {
                tracing::warn!(reason, "stage cannot be captured: its backward is not split");
                Err(reason)
            }
        };
        self.known.insert(signature, found.clone());
        Ok(found)
    }
}
