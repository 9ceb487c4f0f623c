//! Shapes and element types of the operations' outputs, which fusion and captures need before an operation runs.

use super::options::{BUCKETS, RouteOptions};
use burn::tensor::{DType, Int, Shape, Tensor};

/// The element type of integers that kernels write.
const INT: DType = DType::I32;

/// A shape with an element type.
pub(super) type Spec = (Shape, DType);

/// The loss, and the log-sum-exps.
pub(super) fn z_loss((logits, dtype): &Spec) -> [Spec; 2] {
    [(Shape::new([1]), *dtype), (Shape::new([logits[0]]), accumulator(*dtype))]
}

/// Gates and means, choices, load.
pub(super) fn route((logits, dtype): &Spec, options: &RouteOptions) -> [Spec; 3] {
    let (tokens, experts, k) = (logits[0], logits[1], options.top_k);
    let row = (Shape::new([tokens * k + experts]), *dtype);
    [row, (Shape::new([tokens, k]), INT), (Shape::new([experts]), INT)]
}

/// First rows of experts, rows of choices, choices of rows.
pub(super) fn place(experts: &Shape, load: &Shape) -> [Spec; 3] {
    let choices = (Shape::new([experts.num_elements()]), INT);
    [(Shape::new([load[0] + 1]), INT), choices.clone(), choices]
}

/// The gradient of each bucket.
pub(super) fn injected(dtype: DType) -> [Spec; BUCKETS] {
    [(); BUCKETS].map(|()| (Shape::new([1]), dtype))
}

/// A shape with the number of rows of `count` and the width of `wide`.
pub(super) fn rows(count: &Shape, wide: &Shape) -> Shape {
    Shape::new([count[0], wide[1]])
}

pub(super) fn tokens(rows: &Shape, tokens: &usize) -> Shape {
    Shape::new([*tokens, rows[1]])
}

pub(super) fn gates(of_tokens: &Shape, rows: &Shape) -> Shape {
    Shape::new([of_tokens[0], rows[0] / of_tokens[0].max(1)])
}

pub(super) fn product(rows: &Shape, weight: &Shape) -> Shape {
    Shape::new([rows[0], weight[2]])
}

pub(super) fn product_input(of_output: &Shape, weight: &Shape) -> Shape {
    Shape::new([of_output[0], weight[1]])
}

pub(super) fn product_weight(rows: &Shape, of_output: &Shape, offsets: &Shape) -> Shape {
    Shape::new([offsets[0] - 1, rows[1], of_output[1]])
}

/// The type that numbers of this type are summed in, and that counts and positions are computed in beside them.
pub(crate) fn accumulator(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

/// Integers in a type that holds every position of a sequence. In a type of 8 or 16 bits positions would wrap around.
pub(crate) fn holding_positions<const D: usize>(ints: Tensor<D, Int>) -> Tensor<D, Int> {
    match ints.dtype() {
        DType::U8 | DType::I8 | DType::U16 | DType::I16 => ints.cast(DType::I32),
        _ => ints,
    }
}
