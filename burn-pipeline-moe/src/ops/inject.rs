//! The identity on hidden states that gives losses their own gradients in the backward.
//!
//! Guarantees: the forward returns the hidden states themselves and launches nothing. In the backward their gradient
//! passes unchanged, and each loss gets `scale * weight`, with the weight of its bucket, whatever gradient arrives. So
//! the parameters get the gradients of `main + scale * sum of weight * loss` on a stage that never computes the main
//! loss.
//!
//! 1. The losses are joined to the graph of the hidden states one by one; nothing is added.
//! 2. All losses of a bucket have the same gradient. When the backward reaches the first loss, it computes the
//!    gradients of all buckets, in one launch on CubeCL devices: the scale is read, multiplied, and written in the
//!    losses' element type. The other losses share them.
//!
//! The scale is a tensor, not a number, because it differs between microbatches: it stays on the device, and a captured
//! stage reads it again in every replay. Shared state belongs to the graph of one call, so the order of execution,
//! accumulation and replicas cannot mix up scales.
//!
//! The idea is that of Megatron-Core's `MoEAuxLossAutoScaler`, without its class attribute for the scale.

use super::backend::MoeOps;
use super::kernel_device::refuse_type;
use super::options::{BUCKETS, InjectedLoss, InjectedWeights, SharedGradients};
use super::specs::accumulator;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, DispatchAutodiffContext};
use burn::tensor::{DType, Tensor};
use burn_pipeline::payload::AnyTensor;
use std::sync::{Arc, OnceLock};

/// Returns `hidden`; in the backward, `loss` gets the gradient `scale`.
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
/// Same as [`inject_weighted`].
pub fn inject<const D: usize>(hidden: Tensor<D>, loss: Tensor<1>, scale: Tensor<1>) -> Tensor<D> {
    inject_weighted(hidden, [vec![loss], Vec::new(), Vec::new()], [1.0; BUCKETS], scale)
}

/// Returns `hidden`; in the backward, each loss gets the gradient `scale` times the weight of its bucket.
///
/// Losses and `scale` have one element each; the scale is not differentiated. Without autodiff this is the identity.
///
/// # Panics
/// Panics if a loss or `scale` does not have one element, or if a device with kernels does not compute in a loss's
/// element type.
pub fn inject_weighted<const D: usize>(
    hidden: Tensor<D>,
    losses: [Vec<Tensor<1>>; BUCKETS],
    weights: InjectedWeights,
    scale: Tensor<1>,
) -> Tensor<D> {
    let one = |tensor: &Tensor<1>| tensor.dims() == [1];
    assert!(
        one(&scale) && losses.iter().flatten().all(one),
        "injected losses and their scale must have one element each"
    );
    let (mut hidden, scale) = (hidden.into_dispatch(), scale.into_dispatch());
    let scale = match hidden.autodiff {
        DispatchAutodiffContext::Disabled => return Tensor::from_dispatch(hidden),
        context if context == scale.autodiff => scale,
        DispatchAutodiffContext::Enabled(strategy) => {
            AnyTensor::from_dispatch(scale).leaf(strategy, false).into_dispatch()
        }
    };
    // One per element type of the losses, usually one: the gradients are written in that type.
    let mut shared: Vec<Arc<SharedGradients>> = Vec::new();
    for (bucket, losses) in losses.into_iter().enumerate() {
        for loss in losses {
            refuse_type(&loss);
            let dtype = loss.dtype();
            let known = shared.iter().find(|shared| shared.dtype == dtype).cloned();
            let of = known.unwrap_or_else(|| {
                let new = Arc::new(SharedGradients { weights, dtype, gradients: OnceLock::new() });
                shared.push(new.clone());
                new
            });
            hidden = Dispatch::inject_loss(hidden, loss.into_dispatch(), scale.clone(), InjectedLoss { bucket, of });
        }
    }
    Tensor::from_dispatch(hidden)
}

impl InjectedLoss {
    /// The gradient of this loss.
    pub(super) fn gradient<B: Backend + MoeOps>(&self, scale: FloatTensor<B>) -> FloatTensor<B> {
        let all = || <[_; BUCKETS]>::from(B::injected_gradients(scale.clone(), self.of.weights, self.of.dtype));
        let shared = self.of.gradients.get_or_init(|| Box::new(all()));
        let known = shared.downcast_ref::<[FloatTensor<B>; BUCKETS]>();
        // A graph has one backend, so the downcast succeeds; otherwise the gradients are computed again.
        known.map_or_else(|| all()[self.bucket].clone(), |known| known[self.bucket].clone())
    }
}

/// The gradient of each bucket, composed; multiplied in the wider of the two types, as the kernel does.
pub(super) fn composed_gradients(scale: Tensor<1>, weights: InjectedWeights, dtype: DType) -> [Tensor<1>; BUCKETS] {
    let scale = scale.clone().cast(sums_in(scale.dtype(), dtype));
    weights.map(|weight| scale.clone().mul_scalar(weight).cast(dtype))
}

/// The type that a scale is multiplied in, and that losses of different types are added in.
pub(crate) fn sums_in(scale: DType, loss: DType) -> DType {
    if scale == DType::F64 { scale } else { accumulator(loss) }
}
