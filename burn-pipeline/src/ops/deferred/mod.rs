//! Operations with deferred weight gradients: the backward computes the input's gradient first, and the weights'
//! later.
//!
//! Guarantees: the numbers are those of Burn's own operations, since the same calls compute both gradients, only at
//! another time. Outside a [`Deferral::scope`] (in every run except that of a split schedule) the functions here
//! *are* Burn's own: nothing is recorded or deferred. One caveat: if a stage uses a weight three times or more,
//! alternately by deferred and plain operations, the parts of its gradient are added in another order (plain ones
//! first), so the sum may differ in the last bit.
//!
//! 1. An engine runs a forward inside a scope; the layers below find the scope's [`Deferral`] on their thread.
//! 2. They compute their output without autodiff and record one step in the graph; see [`record`].
//! 3. In backward (`I`) the step registers its inputs' gradients, and leaves the [`Deferral`] a task for the weights.
//! 4. In `W` the tasks run and add their gradients to those of the backward.
//!
//! Only gradients of leaves are deferred. The gradient of a weight that is computed from others (cast, merged with an
//! adapter) is needed by the rest of the backward, so it is computed at once. Frozen weights get none.
//!
//! Follows the split of "Zero Bubble Pipeline Parallelism" (Qi et al., 2023), its weight-gradient store, and the
//! `dw_builder` hook of PyTorch's pipeline stages.
//!
//! # Adapting a module
//!
//! Import [`DeferredForward`] and replace `.forward` by `.forward_deferred` where a layer has weights:
//!
//! ```
//! use burn::module::Module;
//! use burn::nn::{Linear, LinearConfig};
//! use burn::tensor::{Device, Tensor, activation::gelu};
//! use burn_pipeline::ops::DeferredForward;
//!
//! #[derive(Module, Debug)]
//! struct FeedForward {
//!     up: Linear,
//!     down: Linear,
//! }
//!
//! impl FeedForward {
//!     fn forward(&self, x: Tensor<3>) -> Tensor<3> {
//!         self.down.forward_deferred(gelu(self.up.forward_deferred(x)))
//!     }
//! }
//!
//! let device = Device::flex().autodiff();
//! let block = FeedForward {
//!     up: LinearConfig::new(4, 8).init(&device),
//!     down: LinearConfig::new(8, 4).init(&device),
//! };
//! assert_eq!(block.forward(Tensor::ones([2, 3, 4], &device)).dims(), [2, 3, 4]);
//! ```

mod conv;
mod embedding;
mod experts;
mod linear;
mod queue;
pub(super) mod record;

pub use experts::expert_matmul;
pub use queue::{Deferral, DeferredError};
pub(crate) use record::DeferredCall;

use burn::backend::ops::FloatTensorOps;
use burn::backend::{Dispatch, DispatchTensor};
use burn::module::Param;
use burn::tensor::Tensor;
use std::sync::Arc;

/// A user-defined operation whose weight gradients can be deferred.
///
/// Its operands are float tensors: first the inputs, whose gradients the stage before waits for, then the weights.
/// The value itself holds anything else it reads (indices, masks, options). Run it with [`deferred`].
///
/// ```
/// use burn::backend::{Dispatch, DispatchTensor};
/// use burn::tensor::Tensor;
/// use burn_pipeline::ops::{DeferredOp, deferred};
///
/// /// `y = x * scale`, of shapes `[n, d]` and `[1, d]`.
/// #[derive(Debug)]
/// struct Scale;
///
/// fn matrix(tensor: &DispatchTensor) -> Tensor<2> {
///     Tensor::from_dispatch(tensor.clone())
/// }
///
/// impl DeferredOp for Scale {
///     fn name(&self) -> &'static str {
///         "scale"
///     }
///
///     fn forward(&self, operands: &[DispatchTensor]) -> DispatchTensor {
///         (matrix(&operands[0]) * matrix(&operands[1])).into_dispatch()
///     }
///
///     fn gradient(&self, operand: usize, operands: &[DispatchTensor], of_output: &DispatchTensor) -> DispatchTensor {
///         let gradient = match operand {
///             0 => matrix(of_output) * matrix(&operands[1]),
///             _ => (matrix(of_output) * matrix(&operands[0])).sum_dim(0),
///         };
///         gradient.into_dispatch()
///     }
/// }
///
/// fn scaled(x: Tensor<2>, scale: Tensor<2>) -> Tensor<2> {
///     Tensor::from_dispatch(deferred(Scale, vec![x.into_dispatch(), scale.into_dispatch()]))
/// }
/// ```
pub trait DeferredOp: std::fmt::Debug + Send + Sync + 'static {
    /// Its name, for messages.
    fn name(&self) -> &'static str;

    /// The number of inputs among the operands; they come first, and the others are weights. An operation must override
    /// it unless it has one.
    fn inputs(&self) -> usize {
        1
    }

    /// The output, from ordinary tensor operations on the operands, with or without autodiff.
    fn forward(&self, operands: &[DispatchTensor]) -> DispatchTensor;

    /// The gradient of one operand, given the output's; all tensors are without autodiff.
    ///
    /// It must have the shape and element type of the operand. Called for each operand that needs a gradient, in
    /// `I` for inputs and in `W` for weights.
    fn gradient(&self, operand: usize, operands: &[DispatchTensor], of_output: &DispatchTensor) -> DispatchTensor;
}

/// The maximum number of operands of a deferred operation: the graph has operations of up to four.
const MAX_OPERANDS: usize = 4;

/// Runs an operation. Its weight gradients are deferred if this thread is inside a [`Deferral::scope`] and one of the
/// weights is a leaf that requires its gradient; otherwise this is only [`DeferredOp::forward`].
///
/// An operation with more than four operands is never deferred.
pub fn deferred(op: impl DeferredOp, operands: Vec<DispatchTensor>) -> DispatchTensor {
    let weights = operands.get(op.inputs()..).unwrap_or_default();
    let trains = || weights.iter().any(Dispatch::float_is_require_grad);
    match Deferral::open().filter(|_| operands.len() <= MAX_OPERANDS && trains()) {
        Some(deferral) => record::record(DeferredCall::new(Arc::new(op), deferral), operands),
        None => op.forward(&operands),
    }
}

/// A Burn layer that can defer its weight gradients.
pub trait DeferredForward<Input> {
    /// The layer's output.
    type Output;

    /// The layer's `forward`; in a split schedule its weight gradients are computed in `W`.
    ///
    /// # Panics
    /// Panics if shapes do not fit, like the layer's `forward`.
    fn forward_deferred(&self, input: Input) -> Self::Output;
}

/// Returns true if an operation with this weight is to be recorded: there is a scope, and the weight is a leaf to be
/// trained.
fn defers<const D: usize>(weight: &Param<Tensor<D>>) -> bool {
    Deferral::is_open() && weight.val().is_require_grad()
}

/// The operands of a layer: input, weight and, if there is one, bias.
fn operands<const I: usize, const W: usize>(
    input: Tensor<I>,
    weight: &Param<Tensor<W>>,
    bias: Option<&Param<Tensor<1>>>,
) -> Vec<DispatchTensor> {
    let bias = bias.map(|bias| bias.val().into_dispatch());
    [input.into_dispatch(), weight.val().into_dispatch()].into_iter().chain(bias).collect()
}
