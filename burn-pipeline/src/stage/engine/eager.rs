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
//! 6. A forward that casts to a type that the device does not compute in is refused before it runs (`casts`).

use super::call::{BackwardCall, ForwardCall, ForwardOutput, Gradients, check_gradients, held_outputs};
use super::casts::refuse_given;
use super::contract::{Engine, EngineState};
use super::function::{StageCode, strategy_of};
use super::report::{DeferredShare, EngineReport};
use super::seeded::SeededDraws;
use crate::ops::{Deferral, HeldOutputs, OutputGradient};
use crate::payload::{AnyTensor, TensorKind};
use crate::stage::error::StageError;
use crate::stage::module::Stage;
use crate::stage::options::StageOptions;
use crate::stage::random::ForwardSeed;
use crate::stage::state::{GradientStore, WeightGradients, each_float};
use burn::backend::autodiff::grads::Gradients as GraphGradients;
use burn::backend::{AutodiffBackend, Dispatch};
use burn::module::Module;
use burn::tensor::{DType, Shape};
use std::collections::HashMap;
use std::convert::Infallible;

/// What is held of a microbatch between its forward and its backward.
struct HeldForward {
    /// Float inputs whose gradient is wanted, and then extras, if any of theirs is; `None` for other tensors.
    leaves: Vec<Option<AnyTensor>>,
    /// Nodes of the outputs that can have a gradient; `None` if there is no backward to run.
    nodes: Option<HeldOutputs>,
    /// Shape and element type of each output that can have a gradient; their storage is released.
    outputs: Vec<Option<(Shape, DType)>>,
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
    reason: &'static str,
    /// True if outputs are held until their backward, as in a plain autodiff loop.
    keeps_outputs: bool,
    /// True if layers may defer their weight gradients.
    defers: bool,
    share: Option<DeferredShare>,
    held: HashMap<usize, HeldForward>,
    halfway: HashMap<usize, HeldBackward>,
    /// Forwards that draw random numbers from a seed, and what recordings have shown.
    pub(super) seeded: SeededDraws,
}

impl Eager {
    /// An engine that reports this reason. `splits` says whether the plan splits backwards, so that layers may defer
    /// their weight gradients.
    pub(crate) fn new(reason: &'static str, options: &StageOptions, splits: bool, keeps_outputs: bool) -> Self {
        let seeded = SeededDraws::new(options);
        Self { reason, keeps_outputs, defers: splits, seeded, ..Self::default() }
    }

    /// Runs the backward of a microbatch, except for the weight gradients that layers defer.
    fn run_backward(&mut self, call: BackwardCall) -> Result<(Gradients, HeldBackward), StageError> {
        let held = self.held.remove(&call.microbatch).ok_or(StageError::NotHeld)?;
        let specs = held.outputs.iter().map(|output| output.as_ref().map(|(shape, dtype)| (shape, *dtype)));
        check_gradients(&call.seeds, specs)?;
        let given = call.seeds.into_iter().zip(&held.outputs).filter(|(_, output)| output.is_some());
        let gradient = |seed: AnyTensor| OutputGradient { gradient: seed.into_dispatch(), likely_unused: false };
        let given = given.map(|(seed, _)| seed.map(gradient)).collect();
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
        call: ForwardCall,
    ) -> Result<ForwardOutput, StageError> {
        let microbatch = call.microbatch;
        let strategy = strategy_of(code.module);
        let Ok((call, leaves)) = call.with_leaves(|tensor, wanted| Ok::<_, Infallible>(tensor.leaf(strategy, wanted)));
        let deferral = self.defers.then(Deferral::default);
        let computed = match &deferral {
            Some(deferral) => deferral.scope(|| code.function.train(code.module, call)),
            None => code.function.train(code.module, call),
        }?;
        let (tracked, outcome) = (computed.roots(), computed.inner());
        let kept =
            if self.keeps_outputs { tracked.iter().cloned().map(AnyTensor::inner).collect() } else { Vec::new() };
        let spec = |output: &AnyTensor| (output.kind() == TensorKind::Float).then(|| (output.shape(), output.dtype()));
        let outputs = tracked.iter().map(spec).collect();
        let nodes = held_outputs(tracked);
        self.held.insert(microbatch, HeldForward { leaves, nodes, outputs, _kept: kept, deferral });
        Ok(outcome)
    }

    fn run_forward_only<M: Stage>(code: &StageCode<'_, M>, call: ForwardCall) -> Result<ForwardOutput, StageError> {
        let strategy = strategy_of(code.module);
        let Ok((call, _)) = call.with_leaves(|tensor, _| Ok::<_, Infallible>(tensor.leaf(strategy, false)));
        // Keep the device an autodiff device: layers such as dropout read from it that they are training. Without
        // gradients for the module's parameters nothing is tracked, so nothing is held.
        Ok(code.function.train(&code.module.clone().no_grad(), call)?.inner())
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
        self.seeded.refuse_casts(code, &call)?;
        let mut seeded = std::mem::take(&mut self.seeded);
        let given = seeded.run(code, call, |call| self.run_forward(code, call));
        self.seeded = seeded;
        self.checked(given?)
    }

    fn forward_only(&mut self, code: &StageCode<'_, M>, call: ForwardCall) -> Result<ForwardOutput, StageError> {
        self.seeded.refuse_casts(code, &call)?;
        let given = self.seeded.run(code, call, |call| Self::run_forward_only(code, call))?;
        self.checked(given)
    }

    fn backward(
        &mut self,
        code: &StageCode<'_, M>,
        call: BackwardCall,
        store: &mut GradientStore,
    ) -> Result<Gradients, StageError> {
        let (microbatch, whole) = (call.microbatch, call.whole);
        let (inputs, halfway) = self.run_backward(call)?;
        match whole {
            true => store.add(microbatch, self.finish(code.module, halfway)?),
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
        EngineReport { captured: false, reason: self.reason.to_owned(), deferred: self.share, programs: Vec::new() }
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

/// Takes the gradients of a module's parameters, in visiting order.
fn weight_gradients<M: Module>(module: &M, mut gradients: GraphGradients) -> WeightGradients {
    let mut taken = WeightGradients::new();
    each_float(module, |_, param| {
        let value = param.base();
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
        let value = param.base();
        if value.is_tracked() && Dispatch::grad(value.as_dispatch(), gradients).is_some() {
            seen.insert(param.id(), value.shape().num_elements());
        }
    });
    seen.into_values().sum()
}
