//! The plain way to run a stage: Burn's own autodiff, its backward seeded with the received gradients.
//!
//! 1. Forward: each float input becomes a leaf of a new graph, the module runs, and the outputs are handed on
//!    without autodiff; of the graph only a root is kept ([`seed_root`](crate::ops::seed_root)), so an output's
//!    storage is free once it has been handed on.
//! 2. Backward: the received gradients go into the root's slots, one backward runs, and the gradients of inputs
//!    and weights are read.
//! 3. `I` and `W`: Burn computes both gradients at once, so `I` runs the whole backward and holds the weights'
//!    gradients until `W` adds them. Right under every schedule, but only a true split takes work off `I`.

use super::Stage;
use super::any_tensor::{AnyTensor, Kind};
use super::boundary::{Part, Payload};
use super::engine::{Engine, EngineReport, ForwardCall, Gradients, Outcome};
use super::error::StageError;
use super::function::{Computed, StageFunction};
use super::gradients::{GradientStore, WeightGradients};
use super::loss::LossPart;
use crate::ops::{GradientSlot, seed_root};
use burn::backend::{AutodiffBackend, Dispatch, DispatchTensor};
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::{DType, GradientCheckpointingStrategy, Shape, Tensor};
use std::collections::HashMap;

type RawGradients = <Dispatch as AutodiffBackend>::Gradients;

/// Shape and element type of an output, its storage being gone.
#[derive(Debug)]
struct Form {
    shape: Shape,
    dtype: DType,
    slot: Option<GradientSlot>,
}

/// What is held of a microbatch between forward and backward.
struct Held {
    /// The float inputs whose gradient is wanted; `None` at the place of the others.
    leaves: Vec<Option<AnyTensor>>,
    root: Option<DispatchTensor>,
    outputs: Vec<Form>,
    /// The outputs themselves, where they are not to be released.
    _kept: Vec<AnyTensor>,
}

/// Runs a stage with Burn's autodiff; see the module's header.
#[derive(Default)]
pub(crate) struct Eager {
    /// Why the stage is run this way.
    reason: String,
    /// Hold outputs until their backward, as a plain autodiff loop does?
    keeps_outputs: bool,
    held: HashMap<usize, Held>,
    deferred: HashMap<usize, WeightGradients>,
}

impl Eager {
    /// An engine that says why it was chosen.
    pub(crate) fn because(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), ..Self::default() }
    }

    /// The same engine, which holds outputs until their backward if `keeps`.
    pub(crate) fn keeping_outputs(self, keeps: bool) -> Self {
        Self { keeps_outputs: keeps, ..self }
    }

    fn run_backward(
        &mut self,
        sample: usize,
        seeds: Gradients,
    ) -> Result<(Gradients, Option<RawGradients>), StageError> {
        let held = self.held.remove(&sample).ok_or(StageError::NotHeld)?;
        if seeds.len() != held.outputs.len() {
            return Err(StageError::GradientCount { got: seeds.len(), expected: held.outputs.len() });
        }
        for (output, (form, seed)) in held.outputs.iter().zip(seeds).enumerate() {
            let (Some(slot), Some(seed)) = (&form.slot, seed) else { continue };
            if seed.shape() != form.shape || seed.dtype() != form.dtype {
                let got = format!("{:?} of {:?}", seed.shape(), seed.dtype());
                return Err(StageError::GradientForm {
                    output,
                    got,
                    expected: format!("{:?} of {:?}", form.shape, form.dtype),
                });
            }
            slot.set(seed.into_dispatch());
        }
        let Some(root) = held.root else {
            return Ok((held.leaves.iter().map(|_| None).collect(), None));
        };
        let mut gradients = Dispatch::backward(root);
        let take = |leaf: Option<AnyTensor>| {
            leaf.and_then(|leaf| Dispatch::grad_remove(leaf.as_dispatch(), &mut gradients))
                .map(AnyTensor::from_dispatch)
        };
        let inputs = held.leaves.into_iter().map(take).collect();
        Ok((inputs, Some(gradients)))
    }
}

impl<M: Stage> Engine<M> for Eager {
    fn name(&self) -> &'static str {
        "eager"
    }

    fn report(&self) -> EngineReport {
        EngineReport::eager(self.reason.clone())
    }

    fn forward(
        &mut self,
        function: &StageFunction<M>,
        module: &M,
        mut call: ForwardCall,
    ) -> Result<Outcome, StageError> {
        let sample = call.sample;
        let strategy = strategy_of(module);
        let mut leaves = Vec::new();
        let wants_gradient = call.wants_input_gradient;
        call.input = attach(call.input, strategy, wants_gradient, Some(&mut leaves));
        call.extra = attach(call.extra, strategy, false, None);
        call.target = call.target.map(|target| attach(target, strategy, false, None));
        let (outcome, tracked) = match function.train(module, call)? {
            Computed::Output(payload) => detach(payload),
            Computed::Loss(loss) => {
                let value = AnyTensor::new(loss.value);
                let part = LossPart { value: value.clone().inner(), weight: loss.weight };
                (Outcome::Loss(Box::new(part)), vec![value])
            }
        };
        let kept =
            if self.keeps_outputs { tracked.iter().cloned().map(AnyTensor::inner).collect() } else { Vec::new() };
        let mut outputs: Vec<Form> =
            tracked.iter().map(|t| Form { shape: t.shape(), dtype: t.dtype(), slot: None }).collect();
        let differentiable: Vec<usize> = (0..tracked.len()).filter(|&i| tracked[i].kind() == Kind::Float).collect();
        let floats = tracked.into_iter().filter(|t| t.kind() == Kind::Float).map(AnyTensor::into_dispatch).collect();
        let root = seed_root(floats).map(|(root, slots)| {
            for (output, slot) in differentiable.into_iter().zip(slots) {
                outputs[output].slot = Some(slot);
            }
            root
        });
        self.held.insert(sample, Held { leaves, root, outputs, _kept: kept });
        Ok(outcome)
    }

    fn backward(
        &mut self,
        module: &M,
        sample: usize,
        seeds: Gradients,
        store: &mut GradientStore,
    ) -> Result<Gradients, StageError> {
        let (inputs, gradients) = self.run_backward(sample, seeds)?;
        store.add(sample, gradients.map(|g| weight_gradients(module, g)).unwrap_or_default());
        Ok(inputs)
    }

    fn backward_input(&mut self, module: &M, sample: usize, seeds: Gradients) -> Result<Gradients, StageError> {
        let (inputs, gradients) = self.run_backward(sample, seeds)?;
        self.deferred.insert(sample, gradients.map(|g| weight_gradients(module, g)).unwrap_or_default());
        Ok(inputs)
    }

    fn backward_weight(&mut self, _: &M, sample: usize, store: &mut GradientStore) -> Result<(), StageError> {
        store.add(sample, self.deferred.remove(&sample).ok_or(StageError::NotHeld)?);
        Ok(())
    }

    fn held(&self) -> usize {
        self.held.len() + self.deferred.len()
    }

    fn clear(&mut self) {
        self.held.clear();
        self.deferred.clear();
    }
}

/// The checkpointing strategy of a module's parameters: inputs must carry the same one.
pub(crate) fn strategy_of<M: Module>(module: &M) -> GradientCheckpointingStrategy {
    let on_device = |device: burn::tensor::Device| device.gradient_checkpointing_strategy();
    module.devices().into_iter().find_map(on_device).unwrap_or_default()
}

/// Puts a payload's tensors under autodiff; float ones become leaves, gathered in `leaves`, where a gradient is
/// wanted.
fn attach(
    payload: Payload,
    strategy: GradientCheckpointingStrategy,
    tracked: bool,
    mut leaves: Option<&mut Vec<Option<AnyTensor>>>,
) -> Payload {
    let attach = |part| {
        let Part::Tensor(tensor) = part else { return part };
        let leaf = tensor.leaf(strategy, tracked);
        if let Some(leaves) = leaves.as_deref_mut() {
            leaves.push((tracked && leaf.kind() == Kind::Float).then(|| leaf.clone()));
        }
        Part::Tensor(leaf)
    };
    Payload::from_parts(payload.into_parts().map(attach))
}

/// The payload to hand on, and the same tensors with their graph.
fn detach(payload: Payload) -> (Outcome, Vec<AnyTensor>) {
    let tracked: Vec<AnyTensor> = payload.tensors().cloned().collect();
    let plain = payload.into_parts().map(|part| match part {
        Part::Tensor(tensor) => Part::Tensor(tensor.inner()),
        form => form,
    });
    (Outcome::Output(Payload::from_parts(plain)), tracked)
}

/// Takes the gradients of a module's parameters, in visiting order.
fn weight_gradients<M: Module>(module: &M, gradients: RawGradients) -> WeightGradients {
    struct Take {
        gradients: RawGradients,
        taken: WeightGradients,
    }

    impl ModuleVisitor for Take {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let value = AnyTensor::new(param.val());
            if !value.is_tracked() {
                return;
            }
            if let Some(gradient) = Dispatch::grad_remove(value.as_dispatch(), &mut self.gradients) {
                self.taken.push((param.id, AnyTensor::from_dispatch(gradient)));
            }
        }
    }

    let mut take = Take { gradients, taken: Vec::new() };
    module.visit(&mut take);
    take.taken
}

/// The identifiers of a module's float parameters, in visiting order.
pub(crate) fn parameter_ids<M: Module>(module: &M) -> Vec<ParamId> {
    struct Ids(Vec<ParamId>);

    impl ModuleVisitor for Ids {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if !self.0.contains(&param.id) {
                self.0.push(param.id);
            }
        }
    }

    let mut ids = Ids(Vec::new());
    module.visit(&mut ids);
    ids.0
}
