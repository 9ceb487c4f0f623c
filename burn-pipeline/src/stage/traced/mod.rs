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
mod parameters;
mod record;
mod signature;

use super::Stage;
use super::any_tensor::AnyTensor;
use super::boundary::{Part, Payload};
use super::eager::Eager;
use super::engine::{Engine, EngineReport, ForwardCall, Gradients, Outcome};
use super::error::StageError;
use super::function::StageFunction;
use super::gradients::{GradientStore, WeightGradients};
use super::loss::{LossPart, Weight};
use crate::program::{Program, Replay, StagePrograms, interpreter, on_device};
use burn::backend::ir::TensorId;
use burn::backend::{Dispatch, DispatchTensor, ops::FloatTensorOps};
use burn::module::ParamId;
use burn::tensor::Device;
use parameters::Parameters;
use record::{Refusal, Shape, WeightShape};
use signature::Signature;
use std::collections::HashMap;
use std::sync::Arc;

/// A captured stage, ready to run on its device.
struct Ready {
    programs: Arc<StagePrograms>,
    shape: Shape,
    parameters: Vec<ParamId>,
    constants: Vec<(TensorId, DispatchTensor)>,
}

/// One microbatch on its way through the programs.
struct Flight {
    ready: Arc<Ready>,
    replay: Box<dyn Replay>,
    device: Device,
}

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
            Ok((programs, shape, device)) => {
                let constant = |(id, data): &(TensorId, _)| (*id, on_device(Clone::clone(data), &device));
                let constants = programs.constants.iter().map(constant).collect();
                let milliseconds = began.elapsed().as_secs_f64() * 1e3;
                let (deferrable, parameters) = (programs.deferrable(), parameters.ids());
                tracing::info!(milliseconds, deferrable, "stage captured: its backward is split");
                Ok(Arc::new(Ready { programs: Arc::new(programs), shape, parameters, constants }))
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

impl Flight {
    /// Starts a microbatch: feeds what arrived and the parameters, and runs the forward.
    fn forward(
        ready: Arc<Ready>,
        call: ForwardCall,
        parameters: Parameters,
    ) -> Result<(Self, Vec<DispatchTensor>), StageError> {
        let device = parameters.device(&call);
        let replay = interpreter(&device).ok_or_else(|| StageError::Unsupported(NO_REPLAY.to_owned()))?;
        let mut flight = Self { replay, device, ready: ready.clone() };
        let edges = &ready.programs.edges;
        let target = call.target.filter(|_| call.ends_route).into_iter();
        let arrived = [call.input, call.extra].into_iter().chain(target).flat_map(tensors);
        let fed = edges.inputs.iter().chain(&edges.parameters).zip(arrived.chain(parameters.values));
        let program = ready.programs.forward();
        for (edge, tensor) in fed.filter(|(edge, _)| program.reads(edge)) {
            flight.feed(edge.id, tensor)?;
        }
        for (id, tensor) in &ready.constants {
            if program.feeds().iter().any(|fed| fed.id == *id) {
                flight.feed(*id, tensor.clone())?;
            }
        }
        let outputs = flight.run(program);
        Ok((flight, outputs))
    }

    fn feed(&mut self, id: TensorId, tensor: DispatchTensor) -> Result<(), StageError> {
        self.replay.feed(id, tensor).map_err(StageError::Unsupported)
    }

    fn run(&mut self, program: &Program) -> Vec<DispatchTensor> {
        self.replay.run(program.ir());
        program.takes().iter().map(|tensor| self.replay.take(tensor)).collect()
    }

    /// Feeds the received gradients; one that did not come is zero.
    fn seed(&mut self, seeds: Gradients, program: &Program) -> Result<(), StageError> {
        let ready = self.ready.clone();
        let expected = ready.shape.outputs();
        if seeds.len() != expected {
            return Err(StageError::GradientCount { got: seeds.len(), expected });
        }
        for (output, (edge, seed)) in ready.programs.edges.seeds.iter().zip(seeds).enumerate() {
            let Some(edge) = edge else { continue };
            if let Some(seed) = &seed
                && (seed.shape() != edge.shape || seed.dtype() != edge.dtype)
            {
                let form = |shape: &burn::tensor::Shape, dtype| format!("{shape:?} of {dtype:?}");
                let (got, expected) = (form(&seed.shape(), seed.dtype()), form(&edge.shape, edge.dtype));
                return Err(StageError::GradientForm { output, got, expected });
            }
            if program.reads(edge) {
                let zero = || {
                    let device = self.device.clone().inner();
                    Dispatch::float_zeros(edge.shape.clone(), device.as_dispatch(), edge.dtype.into())
                };
                let seed = seed.map_or_else(zero, AnyTensor::into_dispatch);
                self.feed(edge.id, seed)?;
            }
        }
        Ok(())
    }

    /// The gradients of the input, one a tensor, from those that a program gave.
    fn input_gradients(&self, given: &mut impl Iterator<Item = DispatchTensor>) -> Gradients {
        let edges = &self.ready.programs.edges;
        let take = |edge: &Option<_>| edge.as_ref().and_then(|_| given.next()).map(AnyTensor::from_dispatch);
        edges.input_gradients.iter().map(take).collect()
    }

    /// The gradients of the weights, from those that a program gave.
    fn weight_gradients(&self, given: impl Iterator<Item = DispatchTensor>) -> WeightGradients {
        let places = self.ready.programs.edges.weight_gradients.iter().map(|(place, _)| *place);
        places.zip(given).map(|(place, g)| (self.ready.parameters[place], AnyTensor::from_dispatch(g))).collect()
    }
}

const NO_REPLAY: &str = "stages are replayed on Flex and CubeCL devices only";

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
                Ok(ready.shape.outcome(outputs))
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

/// A payload's tensors, moved out.
fn tensors(payload: Payload) -> impl Iterator<Item = DispatchTensor> {
    payload.into_parts().filter_map(|part| match part {
        Part::Tensor(tensor) => Some(tensor.inner().into_dispatch()),
        Part::Form(_) => None,
    })
}

impl Shape {
    /// How many gradients a backward takes.
    fn outputs(&self) -> usize {
        match self {
            Shape::Output(parts) => parts.iter().filter(|part| part.is_none()).count(),
            Shape::Loss(_) => 1,
        }
    }

    /// What a training forward hands on, from what the program gave.
    fn outcome(&self, outputs: Vec<DispatchTensor>) -> Outcome {
        let mut outputs = outputs.into_iter().map(AnyTensor::from_dispatch);
        match self {
            Shape::Output(parts) => {
                let part = |part: &Option<usize>| match part {
                    Some(form) => Some(Part::Form(*form)),
                    None => outputs.next().map(Part::Tensor),
                };
                Outcome::Output(Payload::from_parts(parts.iter().filter_map(part).collect::<Vec<_>>()))
            }
            Shape::Loss(weight) => {
                // A loss program gives the loss first.
                let value = outputs.next().map(|value| (value, outputs.next()));
                let (value, computed) = match value {
                    Some(pair) => pair,
                    None => return Outcome::Output(Payload::default()),
                };
                let weight = match weight {
                    WeightShape::None => None,
                    WeightShape::Host(weight) => Some(Weight::Host(*weight)),
                    WeightShape::Device => computed.map(Weight::Device),
                };
                Outcome::Loss(Box::new(LossPart { value, weight }))
            }
        }
    }
}
