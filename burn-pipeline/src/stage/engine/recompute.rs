//! Activation recomputation: a stage keeps only the input of its forward, and runs the forward again before its
//! backward (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016, with the stage as segment).
//!
//! Guarantees: the gradients equal those of a stage that keeps its activations, bit for bit. Between `F` and the
//! backward a microbatch holds only its input, extra and target. The cost is one more forward in `B`, or in `I` if
//! the plan splits; `W` uses what `I` left.
//!
//! 1. `F` runs without a graph (a captured one drops its interpreter), and its call is kept.
//! 2. `B` and `I` run the forward again with the same call, hold what backwards need, and continue from there.
//! 3. Running statistics, which the first forward updated, are restored after the second.
//! 4. A forward with nothing to differentiate (frozen, and without a gradient of its input) runs once.
//! 5. The second forward must give what the first gave, and draws from the same seed (see [`ForwardSeed`]). A
//!    captured forward replays the same programs, and runs none of the user's code. For an eager one, the outputs of
//!    both runs are compared for every microbatch (by a checksum, as the first outputs are gone). A forward that
//!    draws without a seed, or counts its calls, is thus refused once its outputs differ. The comparison reads both
//!    outputs on the host.

use super::call::{BackwardCall, ForwardCall, ForwardOutput, Gradients};
use super::contract::{Engine, EngineState};
use super::function::StageCode;
use super::report::{ActivationBytes, EngineReport};
use super::seeded::{buffers, restore};
use crate::payload::{AnyTensor, Payload};
use crate::stage::error::StageError;
use crate::stage::module::Stage;
use crate::stage::random::ForwardSeed;
use crate::stage::state::{GradientStore, Names, named_parameters, named_weights};
use burn::module::Module;
use std::collections::HashMap;

/// Wraps another engine, and runs its forwards again before their backward.
pub(crate) struct Recompute<M: Stage> {
    inner: Box<dyn Engine<M>>,
    calls: HashMap<usize, FirstForward>,
    /// Microbatches with nothing to differentiate, with the number of their input tensors.
    idle: HashMap<usize, usize>,
    /// The size of the largest call in bytes.
    call_bytes: usize,
    /// True if the module has buffers; `None` before its first forward.
    buffers: Option<bool>,
}

/// A microbatch between its two forwards.
struct FirstForward {
    call: ForwardCall,
    /// The checksum of the first forward's output; `None` if the second certainly gives the same.
    given: Option<u32>,
}

const DIFFERS: &str = "its forward gives other numbers when it runs again, so its activations cannot be recomputed; \
    if it draws random numbers, give the pipeline a seed (`Builder::seed`); if it counts its forwards or reads what \
    changes, build the stage without `StageBox::recomputed`";

impl<M: Stage> Recompute<M> {
    pub(crate) fn new(inner: Box<dyn Engine<M>>) -> Self {
        Self { inner, calls: HashMap::new(), idle: HashMap::new(), call_bytes: 0, buffers: None }
    }

    /// Runs something that may update buffers, and restores them.
    fn uncounted<T>(
        &mut self,
        module: &M,
        run: impl FnOnce(&mut dyn Engine<M>) -> Result<T, StageError>,
    ) -> Result<T, StageError> {
        if self.buffers != Some(true) {
            return run(&mut *self.inner);
        }
        let before = buffers(module);
        let result = run(&mut *self.inner);
        restore(module, &before);
        result
    }

    /// Runs the forward again, and holds what backwards need. Refuses a forward that gives other numbers.
    fn again(&mut self, code: &StageCode<'_, M>, microbatch: usize) -> Result<(), StageError> {
        let FirstForward { call, given } = self.calls.remove(&microbatch).ok_or(StageError::NotHeld)?;
        let again = self.uncounted(code.module, |inner| inner.forward_again(code, call))?;
        match given {
            Some(given) if checksum(&again)? != given => Err(StageError::Unsupported(DIFFERS.to_owned())),
            _ => Ok(()),
        }
    }
}

impl<M: Stage> Engine<M> for Recompute<M> {
    fn forward(&mut self, code: &StageCode<'_, M>, call: ForwardCall) -> Result<ForwardOutput, StageError> {
        if self.buffers.is_none() {
            // Reading the values also initialises lazy parameters. A forward without a graph runs on a copy, and
            // would initialise only the copy's.
            drop(named_weights(code.module, &Names::default()));
            self.buffers = Some(buffers(code.module).is_some());
        }
        let outcome = self.inner.forward_only(code, call.clone())?;
        if !call.wants_gradients() && !trains(code.module) {
            self.idle.insert(call.microbatch, call.input.tensors().count() + call.extra_gradients.len());
            return Ok(outcome);
        }
        let given = if self.inner.repeats(call.microbatch) { None } else { Some(checksum(&outcome)?) };
        self.call_bytes = self.call_bytes.max(bytes(&call));
        self.calls.insert(call.microbatch, FirstForward { call, given });
        Ok(outcome)
    }

    fn forward_only(&mut self, code: &StageCode<'_, M>, call: ForwardCall) -> Result<ForwardOutput, StageError> {
        self.inner.forward_only(code, call)
    }

    fn backward(
        &mut self,
        code: &StageCode<'_, M>,
        call: BackwardCall,
        store: &mut GradientStore,
    ) -> Result<Gradients, StageError> {
        if let Some(&inputs) = self.idle.get(&call.microbatch) {
            if call.whole {
                self.idle.remove(&call.microbatch);
            }
            return Ok(vec![None; inputs]);
        }
        self.again(code, call.microbatch)?;
        self.inner.backward(code, call, store)
    }

    fn backward_weight(&mut self, module: &M, microbatch: usize, store: &mut GradientStore) -> Result<(), StageError> {
        match self.idle.remove(&microbatch) {
            Some(_) => Ok(()),
            None => self.inner.backward_weight(module, microbatch, store),
        }
    }

    fn backward_weights(
        &mut self,
        module: &M,
        microbatches: &[usize],
        store: &mut GradientStore,
    ) -> Result<(), StageError> {
        let idle = |&microbatch: &usize| self.idle.remove(&microbatch).is_some();
        let (_, rest): (Vec<usize>, Vec<usize>) = microbatches.iter().copied().partition(idle);
        self.inner.backward_weights(module, &rest, store)
    }
}

impl<M: Stage> EngineState for Recompute<M> {
    fn report(&self) -> EngineReport {
        let report = self.inner.report();
        EngineReport { reason: format!("{}; its activations are recomputed", report.reason), ..report }
    }

    fn set_forward_seed(&mut self, seed: ForwardSeed) {
        self.inner.set_forward_seed(seed);
    }

    fn held(&self) -> usize {
        self.calls.len() + self.inner.held()
    }

    fn pins_weights(&self) -> bool {
        self.inner.pins_weights()
    }

    fn unload_weights(&mut self) {
        self.inner.unload_weights();
    }

    fn held_bytes(&self) -> Option<usize> {
        Some(self.calls.values().map(|kept| bytes(&kept.call)).sum::<usize>() + self.inner.held_bytes()?)
    }

    fn activation(&self) -> Option<ActivationBytes> {
        let kept = self.inner.activation()?;
        let recomputed = kept.after_forward.saturating_sub(self.call_bytes);
        Some(ActivationBytes { after_forward: self.call_bytes, recomputed, peaks: None, ..kept })
    }

    fn clear(&mut self) {
        self.calls.clear();
        self.idle.clear();
        self.inner.clear();
    }
}

fn trains<M: Module>(module: &M) -> bool {
    named_parameters(module, &Names::default()).iter().any(|parameter| parameter.trainable)
}

fn bytes(call: &ForwardCall) -> usize {
    call.input.bytes() + call.extra.bytes() + call.target.as_ref().map_or(0, Payload::bytes)
}

/// The checksum of the outputs that a forward returned, or of its loss.
fn checksum(given: &ForwardOutput) -> Result<u32, StageError> {
    let mut sum = crc32fast::Hasher::new();
    let mut add = |tensor: &AnyTensor| tensor.add_to(&mut sum).map_err(StageError::Device);
    given.roots().iter().try_for_each(&mut add)?;
    Ok(sum.finalize())
}
