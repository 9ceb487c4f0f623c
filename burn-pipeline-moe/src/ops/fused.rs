//! Shapes and element types of what the operations give, which Burn's fusion must know before they run.

use super::RouteOptions;
use burn::backend::fusion::custom::TensorSpec;
use burn::tensor::{DType, Shape};

/// Element type of integers that kernels write.
const INT: DType = DType::I32;

pub(super) fn z_loss(logits: &TensorSpec) -> (TensorSpec, TensorSpec) {
    let sums = if logits.dtype == DType::F64 { DType::F64 } else { DType::F32 };
    (TensorSpec::new(Shape::new([1]), logits.dtype), TensorSpec::new(Shape::new([logits.shape[0]]), sums))
}

pub(super) fn route(
    logits: &TensorSpec,
    _bias: &TensorSpec,
    options: &RouteOptions,
) -> (TensorSpec, TensorSpec, TensorSpec) {
    let (tokens, experts, k) = (logits.shape[0], logits.shape[1], options.top_k);
    (
        TensorSpec::new(Shape::new([tokens * k + experts]), logits.dtype),
        TensorSpec::new(Shape::new([tokens, k]), INT),
        TensorSpec::new(Shape::new([experts]), INT),
    )
}

pub(super) fn place(
    experts: &TensorSpec,
    load: &TensorSpec,
    _capacity: &usize,
) -> (TensorSpec, TensorSpec, TensorSpec) {
    let choices = TensorSpec::new(Shape::new([experts.shape.num_elements()]), INT);
    (TensorSpec::new(Shape::new([load.shape[0] + 1]), INT), choices.clone(), choices)
}

/// As many rows as `count` has, as wide as `wide`.
pub(super) fn rows(count: &Shape, wide: &Shape) -> Shape {
    Shape::new([count[0], wide[1]])
}

pub(super) fn tokens(rows: &Shape, tokens: &usize) -> Shape {
    Shape::new([*tokens, rows[1]])
}

pub(super) fn gates(of_tokens: &Shape, rows: &Shape) -> Shape {
    Shape::new([of_tokens[0], rows[0] / of_tokens[0]])
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
