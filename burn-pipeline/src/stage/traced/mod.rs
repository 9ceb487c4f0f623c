//! The split way to run a stage: captured once per form of its inputs, replayed as `F`, `I` and `W`.
//!
//! Guarantees: the same numbers as the plain way, bit for bit where the backend gives the same operation the same
//! numbers twice. `I` computes the gradients of the input and no more; `W` the rest. A stage that cannot be
//! captured runs the plain way, with the reason kept for [`Engine::report`] (or fails, where that was asked for).
//!
//! 1. A forward looks its [`Signature`] up: shapes, element types and forms of what arrives, and parameters.
//! 2. A new one is captured (see [`record`](record::record)): nothing of the user's code runs again for it.
//! 3. The forward program runs in an interpreter of its own for the microbatch, fed with the module's present
//!    parameters; what `I` and `W` need stays in it.
//! 4. `I` is fed the received gradients and hands the input's on; `W` empties the interpreter; `B` does both in
//!    the order of autodiff.
//!
//! What is refused, and run the plain way: a forward that reads values (`into_scalar`, control flow on them), that
//! changes buffers (batch norm's running statistics), that uses tensors it does not get as input, extra, target or
//! parameter, or an operation that Burn's capture does not know. A refused capture ends in a panic that is
//! caught; the process's panic hook may print it. Effects of a forward outside tensors (counters, files) happen
//! once a capture and not in a replay: such stages are to be run with
//! [`SplitBackward::Eager`](super::SplitBackward::Eager).

mod captured;
mod flight;
mod parameters;
mod record;
mod signature;

use super::Stage;
use super::eager::Eager;
use super::engine::{Engine, EngineReport, ForwardCall, Gradients, Outcome};
use super::error::StageError;
use super::function::StageFunction;
use super::gradients::GradientStore;
use crate::program::{StagePrograms, on_device};
use burn::backend::ir::TensorId;
use burn::tensor::Device;
use flight::{Flight, Ready};
use parameters::Parameters;
use record::Refusal;
use signature::Signature;
use std::collections::HashMap;
use std::sync::Arc;

/// Runs a stage from its captured programs; see the module's header.
pub(crate) struct Traced {
    /// Fail instead of falling back?
    strict: bool,
    capture: Option<Device>,
    known: HashMap<Signature, Result<Arc<Ready>, String>>,
    forwarded: HashMap<usize, Flight>,
    halfway: HashMap<usize, Flight>,
    eager: Eager,
}

impl Traced {
    /// A new engine; `strict` makes a refused capture an error.
    pub(crate) fn new(strict: bool) -> Self {
        Self {
            strict,
            capture: None,
            known: HashMap::new(),
            forwarded: HashMap::new(),
            halfway: HashMap::new(),
            // Where this engine is chosen, the plan splits: what cannot be captured may still defer.
            eager: Eager::default().deferring(true),
        }
    }

    /// The programs for a call: known, or captured now. `Err` inside says why there are none.
    fn ready<M: Stage>(
        &mut self,
        function: &StageFunction<M>,
        module: &M,
        call: &ForwardCall,
        parameters: &Parameters,
    ) -> Result<Result<Arc<Ready>, String>, StageError> {
        let signature = Signature::new(call, parameters);
        if let Some(known) = self.known.get(&signature) {
            return Ok(known.clone());
        }
        let began = std::time::Instant::now();
        let found = match record::record(&mut self.capture, function, module, call, parameters) {
            Ok((programs, form, device)) => {
                let constant = |(id, data): &(TensorId, _)| (*id, on_device(Clone::clone(data), &device));
                let constants = programs.constants.iter().map(constant).collect();
                let milliseconds = began.elapsed().as_secs_f64() * 1e3;
                let (deferrable, parameters) = (programs.deferrable(), parameters.ids());
                tracing::info!(milliseconds, deferrable, "stage captured: its backward is split");
                Ok(Arc::new(Ready { programs: Arc::new(programs), form, parameters, constants }))
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

impl<M: Stage> Engine<M> for Traced {
    fn name(&self) -> &'static str {
        match self.known.is_empty() || self.known.values().any(Result::is_ok) {
            true => "traced",
            false => "eager",
        }
    }

    fn report(&self) -> EngineReport {
        let programs: Vec<Arc<StagePrograms>> =
            self.known.values().filter_map(|known| known.as_ref().ok()).map(|ready| ready.programs.clone()).collect();
        let refused: Vec<&str> =
            self.known.values().filter_map(|known| known.as_ref().err()).map(String::as_str).collect();
        let reason = match (programs.len(), refused.as_slice()) {
            (0, []) => "no microbatch was run yet".to_owned(),
            (_, []) => "its backward is split, and it could be captured".to_owned(),
            (0, refused) => format!("it cannot be captured: {}", refused.join("; ")),
            (_, refused) => format!("captured for some forms of its inputs, not for others: {}", refused.join("; ")),
        };
        let deferred = Engine::<M>::report(&self.eager).deferred;
        EngineReport { engine: Engine::<M>::name(self), reason, deferred, programs }
    }

    fn forward(&mut self, function: &StageFunction<M>, module: &M, call: ForwardCall) -> Result<Outcome, StageError> {
        let parameters = Parameters::of(module);
        match self.ready(function, module, &call, &parameters)? {
            Err(_) => self.eager.forward(function, module, call),
            Ok(ready) => {
                let sample = call.sample;
                let (flight, outputs) = Flight::forward(ready.clone(), call, parameters)?;
                self.forwarded.insert(sample, flight);
                ready.form.outcome(outputs)
            }
        }
    }

    fn backward(
        &mut self,
        module: &M,
        sample: usize,
        seeds: Gradients,
        store: &mut GradientStore,
    ) -> Result<Gradients, StageError> {
        let Some(mut flight) = self.forwarded.remove(&sample) else {
            return self.eager.backward(module, sample, seeds, store);
        };
        let programs = flight.ready.programs.clone();
        flight.seed(seeds, programs.backward())?;
        let mut given = flight.run(programs.backward()).into_iter();
        let inputs = flight.input_gradients(&mut given);
        store.add(sample, flight.weight_gradients(given));
        Ok(inputs)
    }

    fn backward_input(&mut self, module: &M, sample: usize, seeds: Gradients) -> Result<Gradients, StageError> {
        let Some(mut flight) = self.forwarded.remove(&sample) else {
            return self.eager.backward_input(module, sample, seeds);
        };
        let programs = flight.ready.programs.clone();
        flight.seed(seeds, programs.input())?;
        let mut given = flight.run(programs.input()).into_iter();
        let inputs = flight.input_gradients(&mut given);
        self.halfway.insert(sample, flight);
        Ok(inputs)
    }

    fn backward_weight(&mut self, module: &M, sample: usize, store: &mut GradientStore) -> Result<(), StageError> {
        let Some(mut flight) = self.halfway.remove(&sample) else {
            return self.eager.backward_weight(module, sample, store);
        };
        let programs = flight.ready.programs.clone();
        let given = flight.run(programs.weight());
        store.add(sample, flight.weight_gradients(given.into_iter()));
        Ok(())
    }

    fn held(&self) -> usize {
        self.forwarded.len() + self.halfway.len() + Engine::<M>::held(&self.eager)
    }

    fn clear(&mut self) {
        self.forwarded.clear();
        self.halfway.clear();
        Engine::<M>::clear(&mut self.eager);
    }
}
