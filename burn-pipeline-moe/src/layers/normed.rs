//! Norms in the type of their own parameters, which may be f32 beside half-precision hidden states.

use burn::nn::LayerNorm;
use burn::tensor::Tensor;

/// The norm of hidden states, in the type of the hidden states.
pub(super) fn normed(norm: &LayerNorm, x: Tensor<3>) -> Tensor<3> {
    let own = x.dtype();
    norm.forward(x.cast(norm.gamma.dtype())).cast(own)
}
