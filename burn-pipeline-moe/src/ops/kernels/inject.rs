//! The gradients of injected losses: one unit multiplies the scale by the weight of each bucket.

use super::launch::{empty, launch};
use crate::ops::inject::sums_in;
use crate::ops::options::InjectedWeights;
use burn::backend::DType;
use burn::backend::cubecl::dtype_to_storage_type;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

/// One unit. The scale is read in its own type; results are written in the losses' type.
#[cube(launch, address_type = "dynamic")]
fn scale_weights<S: Float, F: Float, A: Float>(
    scale: &Tensor<S>,
    first: &mut Tensor<F>,
    second: &mut Tensor<F>,
    third: &mut Tensor<F>,
    first_weight: InputScalar,
    second_weight: InputScalar,
    third_weight: InputScalar,
    #[define(S, F, A)] _types: [ElemType; 3],
) {
    if ABSOLUTE_POS > 0 {
        terminate!();
    }
    let value = A::cast_from(scale[0]);
    first[0] = F::cast_from(value * first_weight.get::<A>());
    second[0] = F::cast_from(value * second_weight.get::<A>());
    third[0] = F::cast_from(value * third_weight.get::<A>());
}

/// The gradient of each bucket, `[1]`.
pub(super) fn gradients(
    scale: CubeTensor,
    weights: InjectedWeights,
    dtype: DType,
) -> (CubeTensor, CubeTensor, CubeTensor) {
    let sums = dtype_to_storage_type(sums_in(scale.dtype, dtype));
    let types = [dtype_to_storage_type(scale.dtype), dtype_to_storage_type(dtype), sums];
    let [first, second, third] = weights.map(|_| empty(&scale, [1], dtype));
    let [first_weight, second_weight, third_weight] = weights.map(|weight| InputScalar::new(weight, sums));
    launch!(
        scale_weights, 1, on scale, over [scale],
        [scale, first, second, third],
        [first_weight, second_weight, third_weight, types]
    );
    (first, second, third)
}
