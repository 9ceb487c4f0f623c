//! The backward of several outputs, seeded with gradients that arrive later, without touching the outputs' storage.
//!
//! Guarantees: the gradients equal those of `sum(output * gradient)` over the outputs that have a gradient, bit for
//! bit. No pass over the activation is made, and each output's storage is free as soon as its last other holder drops
//! it: only its graph node is kept (Megatron's `deallocate_output_tensor`). An output without a gradient, which
//! nothing downstream used, has no part in the backward: what influences only this output gets no gradient at all, as
//! on one device, rather than zeros that an optimizer would step with (weight decay, moments).
//!
//! 1. [`HeldOutputs::new`] drops the outputs' storage and keeps their nodes.
//! 2. [`HeldOutputs::seed`] chains one binary operation for each output that has a gradient, starting from a scalar
//!    that tracks nothing; the end of the chain is the root of the backward.
//! 3. In backward, each operation registers the received gradient at its output's node, and continues along the
//!    chain.
//! 4. Burn visits the ancestors of an operation's last parent first, which decides the order of additions. So an
//!    output that is likely unused (`likely_unused`) comes at the end of the chain, with its
//!    parents swapped: all others are then visited as if it did not exist.
//!
//! Burn starts a backward at one tensor, with ones. The chain is that tensor; its operations ignore the ones and
//! register the received gradients instead.

use super::PipelineOps;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, NodeGuard, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{
    Autodiff, AutodiffBackend, Backend, Dispatch, DispatchKindConversion, DispatchTensor, TensorMetadata,
};
use burn::tensor::Shape;
use parking_lot::Mutex;
use std::sync::Arc;

/// The graph node of an output whose storage is released; clones share it.
#[derive(Clone, Default)]
pub(crate) struct HeldNode(Arc<Mutex<Option<NodeGuard>>>);

impl std::fmt::Debug for HeldNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HeldNode")
    }
}

/// The received gradient of one output.
#[derive(Debug, Clone)]
pub(crate) struct OutputGradient {
    /// A tensor without autodiff, of the output's shape, element type and device.
    pub(crate) gradient: DispatchTensor,
    /// True if the output is likely unused; it then does not affect the order in which the others' gradients are added.
    pub(crate) likely_unused: bool,
}

/// The outputs of a forward, between it and its backward: graph nodes without storage.
#[derive(Debug)]
pub(crate) struct HeldOutputs {
    /// A scalar that tracks nothing.
    start: DispatchTensor,
    nodes: Vec<HeldNode>,
}

impl HeldOutputs {
    /// Takes the float outputs of a stage, under autodiff. `None` if no output depends on anything that needs a
    /// gradient, so that there is no backward to run.
    pub(crate) fn new(outputs: Vec<DispatchTensor>) -> Option<Self> {
        let like = outputs.iter().find(|output| Dispatch::is_tracked(output))?;
        let start = scalar_like(like);
        let nodes = outputs.into_iter().map(|output| {
            let node = HeldNode::default();
            drop(Dispatch::hold_output(output, node.clone()));
            node
        });
        Some(Self { nodes: nodes.collect(), start })
    }

    /// The root of the backward, given the gradient of each output in order. `None` if no output that depends on
    /// anything has a gradient.
    pub(crate) fn seed(self, gradients: Vec<Option<OutputGradient>>) -> Option<DispatchTensor> {
        let given = self.nodes.into_iter().zip(gradients).filter_map(|(node, gradient)| Some((node, gradient?)));
        let (last, first): (Vec<_>, Vec<_>) = given.partition(|(_, gradient)| gradient.likely_unused);
        let given = first.into_iter().chain(last);
        let root = given.fold(self.start, |chain, (node, gradient)| Dispatch::seed_output(chain, node, gradient));
        Some(root).filter(Dispatch::is_tracked)
    }
}

/// A zero of shape `[1]` that tracks nothing, on the output's device and with its element type.
fn scalar_like(output: &DispatchTensor) -> DispatchTensor {
    use burn::backend::ops::FloatTensorOps;
    let zeros = Dispatch::float_zeros(Shape::new([1]), &output.device(), output.dtype().into());
    DispatchTensor { autodiff: output.autodiff, ..zeros }
}

#[derive(Debug)]
struct SeedOutput;

impl<B: Backend> Backward<B, 2> for SeedOutput
where
    DispatchTensor: DispatchKindConversion<B>,
{
    type State = OutputGradient;

    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, _: &mut Checkpointer) {
        // `upstream` is the chain's scalar. It goes on to the rest of the chain, so that all its operations run; the
        // output's node gets the received gradient, whatever the scalar is.
        let upstream = grads.consume::<B>(&ops.node);
        let [chain, output] = in_order(ops.parents, &ops.state);
        if let Some(node) = chain {
            grads.register::<B>(node.id, upstream);
        }
        if let (Some(node), Some(gradient)) = (output, primitive::<B>(ops.state.gradient)) {
            grads.register::<B>(node.id, gradient);
        }
    }
}

/// Orders chain and output as parents, or parents as chain and output.
fn in_order<T>([chain, output]: [T; 2], gradient: &OutputGradient) -> [T; 2] {
    if gradient.likely_unused { [output, chain] } else { [chain, output] }
}

/// The backend's own tensor inside a dispatched one; `None` for another backend's.
pub(super) fn primitive<B: Backend>(tensor: DispatchTensor) -> Option<B::FloatTensorPrimitive>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    <DispatchTensor as DispatchKindConversion<B>>::try_into_backend(tensor).ok().map(|t| t.float())
}

/// Keeps an output's node, and returns its storage without the node.
pub(super) fn hold<B: Backend, C: CheckpointStrategy>(
    output: FloatTensor<Autodiff<B, C>>,
    held: HeldNode,
) -> FloatTensor<Autodiff<B, C>> {
    let (storage, node) = output.into_parts();
    *held.0.lock() = Some(node);
    <Autodiff<B, C> as AutodiffBackend>::from_inner(storage)
}

/// Joins an output's node to a chain.
pub(super) fn join<B: Backend, C: CheckpointStrategy>(
    chain: FloatTensor<Autodiff<B, C>>,
    held: HeldNode,
    gradient: OutputGradient,
) -> FloatTensor<Autodiff<B, C>>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    let Some(output_node) = held.0.lock().take() else { return chain };
    let (chain, chain_node) = chain.into_parts();
    // The guard must live until `prepare` has registered this operation as a child: Burn frees a graph whose nodes
    // nobody holds.
    let parents = in_order([chain_node, output_node], &gradient);
    match SeedOutput.prepare::<C>(parents).compute_bound().stateful() {
        OpsKind::Tracked(prep) => prep.finish(gradient, chain),
        OpsKind::UnTracked(prep) => prep.finish(chain),
    }
}
