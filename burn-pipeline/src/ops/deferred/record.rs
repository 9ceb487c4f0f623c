//! The one step that every deferred operation records in the graph.
//!
//! 1. The output is computed without autodiff, then joined to the graph as the child of all operands. The operands
//!    are checkpointed as Burn's own operations do it, so that gradient checkpointing may recompute them.
//! 2. In backward, inputs and weights that are not leaves get their gradients at once.
//! 3. For weights that are leaves, one task is left, which holds the operands and the output's gradient.

use super::DeferredOp;
use super::queue::{Deferral, DeferredError};
use crate::ops::PipelineOps;
use crate::ops::seed::primitive;
use crate::payload::AnyTensor;
use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{
    Autodiff, Backend, BackendTensor, Dispatch, DispatchKindConversion, DispatchTensor, ExtensionType, TensorMetadata,
};
use std::sync::Arc;

/// The operands of an operation: the graph has operations of up to four.
#[derive(ExtensionType)]
pub(crate) enum Operands<B: Backend> {
    One(FloatTensor<B>),
    Two(FloatTensor<B>, FloatTensor<B>),
    Three(FloatTensor<B>, FloatTensor<B>, FloatTensor<B>),
    Four(FloatTensor<B>, FloatTensor<B>, FloatTensor<B>, FloatTensor<B>),
}

/// An operation that is being recorded in the graph.
#[derive(Debug, Clone)]
pub(crate) struct DeferredCall {
    op: Arc<dyn DeferredOp>,
    deferral: Deferral,
}

impl DeferredCall {
    /// An operation that leaves its weight gradients in this deferral.
    pub(super) fn new(op: Arc<dyn DeferredOp>, deferral: Deferral) -> Self {
        Self { op, deferral }
    }

    /// The gradient of one operand; if the operation gave one that does not fit, zeros and a recorded error.
    fn gradient<B: Backend>(
        &self,
        operand: usize,
        operands: &[DispatchTensor],
        of_output: &DispatchTensor,
        device: &B::Device,
    ) -> FloatTensor<B>
    where
        DispatchTensor: DispatchKindConversion<B>,
    {
        let of = &operands[operand];
        let gradient = self.op.gradient(operand, operands, of_output);
        let (got, expected) = (gradient.shape(), of.shape());
        let fits = got == expected && gradient.dtype() == of.dtype();
        primitive::<B>(gradient).filter(|_| fits).unwrap_or_else(|| {
            let (got, operation) = (got.to_vec(), self.op.name());
            self.deferral.fail(DeferredError { operation, operand, got, expected: expected.to_vec() });
            B::float_zeros(expected, device, of.dtype().into())
        })
    }
}

/// Runs the operation without autodiff and joins its output to the graph.
pub(super) fn record(call: DeferredCall, operands: Vec<DispatchTensor>) -> DispatchTensor {
    let plain = |operand: &DispatchTensor| AnyTensor::from_dispatch(operand.clone()).inner().into_dispatch();
    let plain: Vec<DispatchTensor> = operands.iter().map(plain).collect();
    let output = call.op.forward(&plain);
    drop(plain);
    let mut operands = operands.into_iter();
    let operands = match [operands.next(), operands.next(), operands.next(), operands.next()] {
        [Some(a), Some(b), Some(c), Some(d)] => Operands::Four(a, b, c, d),
        [Some(a), Some(b), Some(c), None] => Operands::Three(a, b, c),
        [Some(a), Some(b), None, None] => Operands::Two(a, b),
        [Some(a), None, ..] => Operands::One(a),
        _ => return output,
    };
    Dispatch::defer(output, operands, call)
}

#[derive(Debug)]
struct Deferred;

/// What the step needs in backward.
#[derive(Debug, Clone)]
struct Recorded<const N: usize> {
    call: DeferredCall,
    operands: [NodeId; N],
}

impl<B: Backend, const N: usize> Backward<B, N> for Deferred
where
    DispatchTensor: DispatchKindConversion<B>,
{
    type State = Recorded<N>;

    fn backward(self, ops: Ops<Self::State, N>, grads: &mut Gradients, checkpointer: &mut Checkpointer) {
        let of_output = grads.consume::<B>(&ops.node);
        let device = of_output.device();
        let of_output = dispatched::<B>(of_output);
        let Recorded { call, operands } = ops.state;
        let operands = operands.map(|id| dispatched::<B>(checkpointer.retrieve_node_output(id)));
        let mut waiting = Vec::new();
        for (operand, node) in ops.parents.into_iter().enumerate() {
            let Some(node) = node else { continue };
            // Order 0 is a leaf: no other operation of this backward reads its gradient, so it can wait.
            if operand >= call.op.inputs() && node.order == 0 {
                waiting.push((operand, node.id));
            } else {
                grads.register::<B>(node.id, call.gradient::<B>(operand, &operands, &of_output, &device));
            }
        }
        if !waiting.is_empty() {
            call.deferral.clone().push(move |grads| {
                for (operand, id) in waiting {
                    grads.register::<B>(id, call.gradient::<B>(operand, &operands, &of_output, &device));
                }
            });
        }
    }
}

/// The backend's tensor as one of Burn's dispatch layer.
fn dispatched<B: Backend>(tensor: FloatTensor<B>) -> DispatchTensor
where
    DispatchTensor: DispatchKindConversion<B>,
{
    <DispatchTensor as DispatchKindConversion<B>>::from_backend(BackendTensor::Float(tensor))
}

/// Joins an output to the graph as the child of its operands.
pub(in crate::ops) fn join<B: Backend, C: CheckpointStrategy, const N: usize>(
    output: FloatTensor<Autodiff<B, C>>,
    operands: [FloatTensor<Autodiff<B, C>>; N],
    call: DeferredCall,
) -> FloatTensor<Autodiff<B, C>>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    let output = output.into_primitive();
    match Deferred.prepare::<C>(operands.each_ref().map(|operand| operand.node())).compute_bound().stateful() {
        OpsKind::Tracked(mut prep) => {
            let operands = operands.each_ref().map(|operand| prep.checkpoint(operand));
            prep.finish(Recorded { call, operands }, output)
        }
        OpsKind::UnTracked(prep) => prep.finish(output),
    }
}
