//! The identity on hidden states that gives a loss beside them a gradient of its own.
//!
//! Guarantees: the forward returns the hidden states themselves; in backward their gradient passes unchanged, and
//! the loss gets `scale`, whatever gradient arrives. So the parameters get what `(hidden's share) + scale * loss`
//! gives them, on a stage that never sees the main loss.
//!
//! The scale is a tensor, not a number, because it differs between microbatches: a captured stage reads it anew
//! with every replay. There is no state between calls, so order of execution, accumulation and replicas cannot
//! mix scales up.
//!
//! The idea is that of Megatron-Core's `MoEAuxLossAutoScaler`, without its class attribute for the scale.

use super::MoeOps;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, DispatchAutodiffContext};
use burn::tensor::Tensor;
use burn_pipeline::stage::AnyTensor;

/// Returns `hidden`; in backward, `loss` gets the gradient `scale`.
///
/// `loss` and `scale` have one element; the scale is not differentiated. Without autodiff this is the identity.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use burn_pipeline_moe::ops::inject;
///
/// let device = Device::flex().autodiff();
/// let x = Tensor::<1>::from_floats([1.0, 2.0], &device).require_grad();
/// let auxiliary = x.clone().square().sum();
/// let scale = Tensor::<1>::from_floats([0.5], &device);
/// let gradients = inject(x.clone(), auxiliary, scale).sum().backward();
/// // 1 from the sum, and half of 2x from the injected loss.
/// assert_eq!(x.grad(&gradients).unwrap().into_data().to_vec::<f32>().unwrap(), [2.0, 3.0]);
/// ```
///
/// # Panics
/// If `loss` or `scale` has more or less than one element.
pub fn inject<const D: usize>(hidden: Tensor<D>, loss: Tensor<1>, scale: Tensor<1>) -> Tensor<D> {
    assert_eq!((loss.dims(), scale.dims()), ([1], [1]), "the loss to inject and its scale have one element each");
    let (hidden, scale) = (hidden.into_dispatch(), scale.cast(loss.dtype()).into_dispatch());
    let scale = match hidden.autodiff {
        DispatchAutodiffContext::Disabled => return Tensor::from_dispatch(hidden),
        context if context == scale.autodiff => scale,
        DispatchAutodiffContext::Enabled(strategy) => {
            AnyTensor::from_dispatch(scale).leaf(strategy, false).into_dispatch()
        }
    };
    Tensor::from_dispatch(Dispatch::inject_loss(hidden, loss.into_dispatch(), scale))
}

#[derive(Debug)]
struct InjectLoss;

impl<B: Backend> Backward<B, 2> for InjectLoss {
    type State = B::FloatTensorPrimitive;

    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, _: &mut Checkpointer) {
        let upstream = grads.consume::<B>(&ops.node);
        let [hidden, loss] = ops.parents;
        if let Some(node) = hidden {
            grads.register::<B>(node.id, upstream);
        }
        if let Some(node) = loss {
            grads.register::<B>(node.id, ops.state);
        }
    }
}

/// Joins the hidden states to the graph as the child of themselves and the loss.
pub(super) fn join<B: Backend + MoeOps, C: CheckpointStrategy>(
    hidden: FloatTensor<Autodiff<B, C>>,
    loss: FloatTensor<Autodiff<B, C>>,
    scale: FloatTensor<Autodiff<B, C>>,
) -> FloatTensor<Autodiff<B, C>> {
    let (hidden, hidden_node) = hidden.into_parts();
    let (_, loss_node) = loss.into_parts();
    match InjectLoss.prepare::<C>([hidden_node, loss_node]).compute_bound().stateful() {
        OpsKind::Tracked(prep) => prep.finish(scale.into_primitive(), hidden),
        OpsKind::UnTracked(prep) => prep.finish(hidden),
    }
}
