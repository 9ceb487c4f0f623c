//! The eager engine: Burn's own autodiff, its backward seeded with the received gradients.
//!
//! 1. Forward: each float input (and each extra whose gradient is wanted) becomes a leaf of a new graph, the module
//!    runs, and the outputs are returned without autodiff. Only their graph nodes are kept ([`HeldOutputs`]), so an
//!    output's storage is free once it was sent.
//! 2. Backward: it starts from the outputs that have a gradient. An output that nothing downstream used has none;
//!    nothing is computed for it, and weights and inputs that influence only it get no gradient either.
//! 3. `I` and `W`: Burn computes both kinds of gradients at once, so `I` runs the whole backward and holds the
//!    weights' gradients until `W` adds them. This is correct under every schedule, but makes `I` no cheaper.
//! 4. With a seed, forwards draw only from it ([`SeededDraws`]).
//! 5. In a plan that splits, forwards run inside a [`Deferral`](crate::ops::Deferral): deferring layers leave their
//!    weight gradients to `W`, which computes them and adds them to those that `I` held. `B` runs both at once.
//! 6. A forward that casts to a type that the device does not compute in is refused before it runs ([`Casts`]).

use super::call::{BackwardCall, ForwardCall, ForwardOutput, Gradients};
use super::casts::{Casts, refuse_given};
use super::contract::{Engine, EngineState};
use super::function::{StageCode, TrackedOutput, strategy_of};
use super::recording::{Recorded, Signature};
use super::report::{DeferredShare, EngineReport};
use super::seeded::SeededDraws;
use crate::ops::{Deferral, HeldOutputs, OutputGradient};
use crate::payload::{AnyTensor, Payload, PayloadPart, TensorKind};
use crate::stage::batch::LossPart;
use crate::stage::error::StageError;
use crate::stage::module::Stage;
use crate::stage::random::ForwardSeed;
use crate::stage::state::{GradientStore, WeightGradients, each_float};
use burn::backend::autodiff::grads::Gradients as GraphGradients;
use burn::backend::{AutodiffBackend, Dispatch};
use burn::module::Module;
use burn::tensor::{DType, GradientCheckpointingStrategy, Shape};
use std::collections::HashMap;

/// Shape and element type of an output whose storage is released.
#[derive(Debug)]
struct OutputSpec {
    shape: Shape,
    dtype: DType,
    /// True if it can have a gradient.
    differentiable: bool,
}

/// What is held of a microbatch between its forward and its backward.
struct HeldForward {
    /// Float inputs whose gradient is wanted, and then extras, if any of theirs is; `None` for other tensors.
    leaves: Vec<Option<AnyTensor>>,
    /// Nodes of the outputs that can have a gradient; `None` if there is no backward to run.
    nodes: Option<HeldOutputs>,
    outputs: Vec<OutputSpec>,
    /// The outputs themselves, if they are kept until the backward.
    _kept: Vec<AnyTensor>,
    /// What deferring layers leave to `W`.
    deferral: Option<Deferral>,
}

/// What is held of a microbatch between `I` and `W`.
struct HeldBackward {
    /// All gradients that the backward computed; `None` if there was none to run.
    gradients: Option<GraphGradients>,
    deferral: Option<Deferral>,
}

/// Runs a stage with Burn's autodiff.
#[derive(Default)]
pub(crate) struct Eager {
    /// Why the stage runs this way.
    reason: String,
    /// True if outputs are held until their backward, as in a plain autodiff loop.
    keeps_outputs: bool,
    /// True if layers may defer their weight gradients.
    defers: bool,
    share: Option<DeferredShare>,
    held: HashMap<usize, HeldForward>,
    halfway: HashMap<usize, HeldBackward>,
    /// Forwards that draw random numbers from a seed, and what recordings have shown.
    seeded: SeededDraws,
    /// Whether the types are checked that forwards cast to.
    casts: Casts,
}

impl Eager {
    /// An engine that reports this reason.
    pub(crate) fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), ..Self::default() }
    }

    /// Sets whether outputs are held until their backward.
    pub(crate) fn keeping_outputs(self, keeps: bool) -> Self {
        Self { keeps_outputs: keeps, ..self }
    }

    /// Sets whether layers may defer their weight gradients, for plans that split.
    pub(crate) fn deferring(self, defers: bool) -> Self {
        Self { defers, ..self }
    }

    /// Sets whether other ranks wait for this one inside its forwards: always, and if they draw from a seed.
    pub(crate) fn awaited(mut self, always: bool, if_seeded: bool) -> Self {
        (self.seeded.awaited, self.seeded.awaited_if_seeded) = (always, if_seeded);
        self
    }

    /// Remembers what a recorded forward draws, and that its types were checked.
    pub(super) fn learn(&mut self, signature: Signature, recorded: &Recorded) {
        self.seeded.learn(signature, recorded);
    }

    /// Stops recording forwards, because another engine has tried in vain.
    pub(super) fn cannot_record(&mut self) {
        self.seeded.unseen = true;
    }

    /// Runs the backward of a microbatch, except for the weight gradients that layers defer.
    fn run_backward(&mut self, call: BackwardCall) -> Result<(Gradients, HeldBackward), StageError> {
        let held = self.held.remove(&call.microbatch).ok_or(StageError::NotHeld)?;
        let seeds = call.seeds;
        if seeds.len() != held.outputs.len() {
            return Err(StageError::GradientCount { got: seeds.len(), expected: held.outputs.len() });
        }
        let mut given = Vec::new();
        for (output, (spec, seed)) in held.outputs.iter().zip(seeds).enumerate() {
            if !spec.differentiable {
                continue;
            }
            if let Some(seed) = seed.as_ref().filter(|seed| seed.shape() != spec.shape || seed.dtype() != spec.dtype) {
                let got = format!("{:?} of {:?}", seed.shape(), seed.dtype());
                let expected = format!("{:?} of {:?}", spec.shape, spec.dtype);
                return Err(StageError::GradientSpec { output, got, expected });
            }
            let gradient = |seed: AnyTensor| OutputGradient { gradient: seed.into_dispatch(), likely_unused: false };
            given.push(seed.map(gradient));
        }
        let deferral = held.deferral;
        let Some(root) = held.nodes.and_then(|nodes| nodes.seed(given)) else {
            return Ok((held.leaves.iter().map(|_| None).collect(), HeldBackward { gradients: None, deferral }));
        };
        let mut gradients = Dispatch::backward(root);
        deferral.as_ref().map_or(Ok(()), Deferral::check)?;
        let take = |leaf: Option<AnyTensor>| {
            leaf.and_then(|leaf| Dispatch::grad_remove(leaf.as_dispatch(), &mut gradients))
                .map(AnyTensor::from_dispatch)
        };
        let inputs = held.leaves.into_iter().map(take).collect();
        Ok((inputs, HeldBackward { gradients: Some(gradients), deferral }))
    }

    /// Runs what layers deferred, and returns the gradients of all weights.
    fn finish<M: Module>(&mut self, module: &M, halfway: HeldBackward) -> Result<WeightGradients, StageError> {
        let HeldBackward { gradients: Some(mut gradients), deferral } = halfway else { return Ok(Vec::new()) };
        let Some(deferral) = deferral else { return Ok(weight_gradients(module, gradients)) };
        let operations = deferral.waiting();
        let early = self.share.is_none().then(|| elements_present(module, &gradients));
        deferral.run(&mut gradients)?;
        let weights = weight_gradients(module, gradients);
        if let Some(early) = early {
            let of: usize = weights.iter().map(|(_, gradient)| gradient.shape().num_elements()).sum();
            self.share = Some(DeferredShare { operations, elements: of.saturating_sub(early), of });
        }
        Ok(weights)
    }
}

/// The part that all forwards share.
impl Eager {
    fn run_forward<M: Stage>(
        &mut self,
        code: &StageCode<'_, M>,
        mut call: ForwardCall,
    ) -> Result<ForwardOutput, StageError> {
        let microbatch = call.microbatch;
        let strategy = strategy_of(code.module);
        let mut leaves = Vec::new();
        let (of_input, of_extras) = (call.wants_input_gradient, std::mem::take(&mut call.extra_gradients));
        call.input = attach(call.input, strategy, |_| of_input, &mut leaves);
        let mut extras = Vec::new();
        call.extra = attach(call.extra, strategy, |tensor| of_extras.get(tensor) == Some(&true), &mut extras);
        if !of_extras.is_empty() {
            leaves.append(&mut extras);
        }
        call.target = call.target.map(|target| constant(target, strategy));
        let deferral = self.defers.then(Deferral::default);
        let computed = match &deferral {
            Some(deferral) => deferral.scope(|| code.train(call)),
            None => code.train(call),
        };
        let (outcome, tracked) = detached(computed?);
        let kept =
            if self.keeps_outputs { tracked.iter().cloned().map(AnyTensor::inner).collect() } else { Vec::new() };
        let spec = |t: &AnyTensor| OutputSpec {
            shape: t.shape(),
            dtype: t.dtype(),
            differentiable: t.kind() == TensorKind::Float,
        };
        let outputs = tracked.iter().map(spec).collect();
        let floats =
            tracked.into_iter().filter(|t| t.kind() == TensorKind::Float).map(AnyTensor::into_dispatch).collect();
        let nodes = HeldOutputs::new(floats);
        self.held.insert(microbatch, HeldForward { leaves, nodes, outputs, _kept: kept, deferral });
        Ok(outcome)
    }

    fn run_forward_only<M: Stage>(code: &StageCode<'_, M>, mut call: ForwardCall) -> Result<ForwardOutput, StageError> {
        let strategy = strategy_of(code.module);
        call.input = constant(call.input, strategy);
        call.extra = constant(call.extra, strategy);
        call.target = call.target.map(|target| constant(target, strategy));
        // Keep the device an autodiff device: layers such as dropout read from it that they are training. Without
        // gradients for the module's parameters nothing is tracked, so nothing is held.
        let computed = code.function.train(&code.module.clone().no_grad(), call)?;
        Ok(detached(computed).0)
    }

    /// Checks the types of what a forward gave, if it could not be recorded.
    fn checked(&self, given: ForwardOutput) -> Result<ForwardOutput, StageError> {
        if self.seeded.unseen {
            refuse_given(given.tensors())?;
        }
        Ok(given)
    }
}

impl<M: Stage> Engine<M> for Eager {
    fn forward(&mut self, code: &StageCode<'_, M>, call: ForwardCall) -> Result<ForwardOutput, StageError> {
        self.casts.refuse(&mut self.seeded, code, &call)?;
        let mut seeded = std::mem::take(&mut self.seeded);
        let given = seeded.run(code, call, |call| self.run_forward(code, call));
        self.seeded = seeded;
        self.checked(given?)
    }

    fn forward_only(&mut self, code: &StageCode<'_, M>, call: ForwardCall) -> Result<ForwardOutput, StageError> {
        self.casts.refuse(&mut self.seeded, code, &call)?;
        let given = self.seeded.run(code, call, |call| Self::run_forward_only(code, call))?;
        self.checked(given)
    }

    fn backward(&mut self, module: &M, call: BackwardCall, store: &mut GradientStore) -> Result<Gradients, StageError> {
        let (microbatch, whole) = (call.microbatch, call.whole);
        let (inputs, halfway) = self.run_backward(call)?;
        match whole {
            true => store.add(microbatch, self.finish(module, halfway)?),
            false => drop(self.halfway.insert(microbatch, halfway)),
        }
        Ok(inputs)
    }

    fn backward_weight(&mut self, module: &M, microbatch: usize, store: &mut GradientStore) -> Result<(), StageError> {
        let halfway = self.halfway.remove(&microbatch).ok_or(StageError::NotHeld)?;
        store.add(microbatch, self.finish(module, halfway)?);
        Ok(())
    }
}

impl EngineState for Eager {
    fn report(&self) -> EngineReport {
        EngineReport { deferred: self.share, ..EngineReport::eager(self.reason.clone()) }
    }

    fn set_forward_seed(&mut self, seed: ForwardSeed) {
        self.seeded.seed = seed;
    }

    fn held(&self) -> usize {
        self.held.len() + self.halfway.len()
    }

    fn clear(&mut self) {
        self.held.clear();
        self.halfway.clear();
    }
}

/// Puts a payload's tensors under autodiff. Float ones become leaves if their gradient is wanted; these are
/// collected in `leaves`.
fn attach(
    payload: Payload,
    strategy: GradientCheckpointingStrategy,
    tracked: impl Fn(usize) -> bool,
    leaves: &mut Vec<Option<AnyTensor>>,
) -> Payload {
    let attach = |part| {
        let PayloadPart::Tensor(tensor) = part else { return part };
        let tracked = tracked(leaves.len());
        let leaf = tensor.leaf(strategy, tracked);
        leaves.push((tracked && leaf.kind() == TensorKind::Float).then(|| leaf.clone()));
        PayloadPart::Tensor(leaf)
    };
    Payload::from_parts(payload.into_parts().map(attach))
}

/// Puts a payload's tensors under autodiff, without gradients of theirs.
fn constant(payload: Payload, strategy: GradientCheckpointingStrategy) -> Payload {
    attach(payload, strategy, |_| false, &mut Vec::new())
}

/// What the forward returns, and the same tensors with their graph.
fn detached(computed: TrackedOutput) -> (ForwardOutput, Vec<AnyTensor>) {
    match computed {
        TrackedOutput::Output(payload) => detach(payload),
        TrackedOutput::Loss(loss) => {
            let value = AnyTensor::new(loss.value.clone());
            (ForwardOutput::Loss(Box::new(LossPart::from(*loss))), vec![value])
        }
    }
}

/// The payload without autodiff, and the same tensors with their graph.
fn detach(payload: Payload) -> (ForwardOutput, Vec<AnyTensor>) {
    let tracked: Vec<AnyTensor> = payload.tensors().cloned().collect();
    (ForwardOutput::Activations(payload.inner()), tracked)
}

/// Takes the gradients of a module's parameters, in visiting order.
fn weight_gradients<M: Module>(module: &M, mut gradients: GraphGradients) -> WeightGradients {
    let mut taken = WeightGradients::new();
    each_float(module, |_, param| {
        let value = param.value();
        if !value.is_tracked() {
            return;
        }
        if let Some(gradient) = Dispatch::grad_remove(value.as_dispatch(), &mut gradients) {
            taken.push((param.id(), AnyTensor::from_dispatch(gradient)));
        }
    });
    taken
}

/// The number of elements of the parameters that have a gradient by now, each parameter counted once.
fn elements_present<M: Module>(module: &M, gradients: &GraphGradients) -> usize {
    let mut seen = HashMap::new();
    each_float(module, |_, param| {
        let value = param.value();
        if value.is_tracked() && Dispatch::grad(value.as_dispatch(), gradients).is_some() {
            seen.insert(param.id(), value.shape().num_elements());
        }
    });
    seen.into_values().sum()
}
