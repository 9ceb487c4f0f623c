//! Operations of one tensor whose backward is another operation, such as collectives.
//!
//! Guarantees: the backward runs exactly once for each forward whose input is tracked and whose result gets a
//! gradient, and holds no tensor for it. A capture records forward and backward as one operation each.
//!
//! 1. Under autodiff the forward runs on the inner tensor, and one step with one parent joins the graph. If nothing
//!    tracks the input, a pair whose backward must run in any case ([`Pair::always`]) gets a leaf as its parent.
//! 2. In backward that step runs the other operation on the gradient and registers the result.
//! 3. On Burn's capture device each of the two is recorded whole ([`record`]), and a replay calls it.

use super::PipelineOps;
use crate::program::{CapturedOp, record};
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{
    Autodiff, AutodiffBackend, Backend, BackendTensor, Capture, Dispatch, DispatchKindConversion, DispatchTensor,
};
use std::sync::Arc;

/// The operations of a forward and of its backward; `None` passes the tensor on as it is.
#[derive(Clone, Debug)]
pub(crate) struct Pair {
    pub(crate) forward: Option<Arc<dyn CapturedOp>>,
    pub(crate) backward: Option<Arc<dyn CapturedOp>>,
    /// True if the backward runs on a gradient of the result even if autodiff does not track the input, as another
    /// rank's may be tracked.
    pub(crate) always: bool,
}

/// Runs `pair.forward` on a float tensor; the gradient of the result goes through `pair.backward`.
pub(crate) fn paired(input: DispatchTensor, pair: Pair) -> DispatchTensor {
    Dispatch::pair(input, pair)
}

impl Pair {
    /// The operation of the backward, without a backward of its own.
    fn reversed(self) -> Self {
        Self { forward: self.backward, backward: None, always: false }
    }

    /// Runs the forward.
    ///
    /// # Panics
    /// Panics if it breaks the contract of [`CapturedOp::run`]: one output on the same backend.
    pub(super) fn run<B: Backend>(self, input: FloatTensor<B>) -> FloatTensor<B>
    where
        DispatchTensor: DispatchKindConversion<B>,
    {
        let Some(op) = self.forward else { return input };
        let input = <DispatchTensor as DispatchKindConversion<B>>::from_backend(BackendTensor::Float(input));
        let output = op.run(vec![input]).pop();
        let output = output.map(<DispatchTensor as DispatchKindConversion<B>>::try_into_backend);
        match output {
            Some(Ok(BackendTensor::Float(output))) => output,
            _ => panic!("`{}` gave no float tensor of the backend that it ran on", op.name()),
        }
    }

    /// Records the forward.
    ///
    /// # Panics
    /// Panics outside a capture of a stage, where nothing would run it: capture code refuses by panicking.
    pub(super) fn record(self, input: FloatTensor<Capture>) -> FloatTensor<Capture> {
        let Some(op) = self.forward else { return input };
        let name = op.name();
        let recorded = record(op, vec![input]).and_then(|mut outputs| outputs.pop());
        recorded.unwrap_or_else(|| panic!("`{name}` runs only in captures of stages"))
    }
}

#[derive(Debug)]
struct Paired;

impl<B: Backend + PipelineOps> Backward<B, 1> for Paired {
    type State = Pair;

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let of_output = grads.consume::<B>(&ops.node);
        let [parent] = ops.parents;
        if let Some(node) = parent {
            grads.register::<B>(node.id, B::pair(of_output, ops.state.reversed()));
        }
    }
}

/// The step of a pair whose input is not tracked. Its parents are a leaf, so that there is a backward, and the input,
/// which gives the step its depth in the graph: a member of the group whose input is tracked runs its own step at the
/// same depth.
#[derive(Debug)]
struct OnLeaf;

impl<B: Backend + PipelineOps> Backward<B, 2> for OnLeaf {
    type State = Pair;

    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, _: &mut Checkpointer) {
        let of_output = grads.consume::<B>(&ops.node);
        // Nothing reads the leaf's gradient.
        drop(B::pair(of_output, ops.state.reversed()));
    }
}

/// Runs the forward below autodiff and joins it to the graph.
pub(super) fn tracked<B: Backend + PipelineOps, C: CheckpointStrategy>(
    input: FloatTensor<Autodiff<B, C>>,
    pair: Pair,
) -> FloatTensor<Autodiff<B, C>> {
    let always = pair.always.then(|| input.node());
    let (input, node) = input.into_parts();
    let output = B::pair(input, pair.clone());
    let untracked = match Paired.prepare::<C>([node]).compute_bound().stateful() {
        OpsKind::Tracked(prep) => return prep.finish(pair, output),
        OpsKind::UnTracked(prep) => prep,
    };
    let Some(node) = always else { return untracked.finish(output) };
    let leaf = <Autodiff<B, C> as AutodiffBackend>::from_inner(output.clone()).require_grad();
    match OnLeaf.prepare::<C>([leaf.node(), node]).compute_bound().stateful() {
        OpsKind::Tracked(prep) => prep.finish(pair, output),
        OpsKind::UnTracked(prep) => prep.finish(output),
    }
}
