//! The cost of an operation: floating-point operations and bytes moved.
//!
//! Matmuls and convolutions count two operations per multiply-add. Everything else counts one per element that it
//! writes or reduces; views and lookups are free. Custom operations report their own count.

use super::custom::CustomOps;
use super::storage::bytes_of;
use burn::backend::ir::{BaseOperationIr, FloatOperationIr, ModuleOperationIr, OperationIr, TensorIr};

/// Floating-point operations of one operation.
pub(super) fn flops(op: &OperationIr, custom: &CustomOps) -> u64 {
    match op {
        OperationIr::Custom(op) => custom.flops(op),
        OperationIr::Float(_, FloatOperationIr::Matmul(op)) => 2 * elements(&op.out) * last(&op.lhs),
        OperationIr::Module(module) => module_flops(module).unwrap_or_else(|| largest(op)),
        OperationIr::BaseFloat(_) | OperationIr::BaseInt(_) | OperationIr::BaseBool(_) => 0,
        OperationIr::Drop(_) | OperationIr::Init(_) => 0,
        other => largest(other),
    }
}

/// Bytes that one operation reads and writes.
pub(super) fn bytes(op: &OperationIr) -> u64 {
    match op {
        OperationIr::Drop(_) | OperationIr::Init(_) => 0,
        op if is_view(op) => 0,
        op => op.nodes().into_iter().map(|tensor| bytes_of(tensor) as u64).sum(),
    }
}

fn is_view(op: &OperationIr) -> bool {
    let (OperationIr::BaseFloat(base) | OperationIr::BaseInt(base) | OperationIr::BaseBool(base)) = op else {
        return false;
    };
    use BaseOperationIr::{Expand, Permute, Reshape, Slice, SwapDims};
    matches!(base, Reshape(_) | SwapDims(_) | Permute(_) | Slice(_) | Expand(_))
}

/// Elements of the largest tensor that the operation touches.
fn largest(op: &OperationIr) -> u64 {
    op.nodes().into_iter().map(elements).max().unwrap_or(0)
}

fn module_flops(op: &ModuleOperationIr) -> Option<u64> {
    use ModuleOperationIr as Op;
    Some(match op {
        Op::Linear(op) => 2 * elements(&op.out) * last(&op.x),
        Op::LinearXBackward(op) => 2 * elements(&op.out) * last(&op.output_grad),
        Op::LinearWeightBackward(op) => 2 * elements(&op.x) * last(&op.output_grad),
        Op::Conv1d(op) => convolution(&op.out, &op.weight),
        Op::Conv2d(op) => convolution(&op.out, &op.weight),
        Op::Conv3d(op) => convolution(&op.out, &op.weight),
        Op::Conv1dXBackward(op) => convolution(&op.output_grad, &op.weight),
        Op::Conv2dXBackward(op) => convolution(&op.output_grad, &op.weight),
        Op::Conv3dXBackward(op) => convolution(&op.output_grad, &op.weight),
        Op::Conv1dWeightBackward(op) => convolution(&op.output_grad, &op.weight),
        Op::Conv2dWeightBackward(op) => convolution(&op.output_grad, &op.weight),
        Op::Conv3dWeightBackward(op) => convolution(&op.output_grad, &op.weight),
        Op::ConvTranspose1d(op) => convolution(&op.x, &op.weight),
        Op::ConvTranspose2d(op) => convolution(&op.x, &op.weight),
        Op::ConvTranspose3d(op) => convolution(&op.x, &op.weight),
        // Rows are looked up; in backward, those of one token are added. The table's size does not matter.
        Op::Embedding(_) => 0,
        Op::EmbeddingBackward(op) => elements(&op.out_grad),
        // Scores from queries and keys, then a mix of values.
        Op::Attention(op) => 2 * (elements(&op.query) + elements(&op.out)) * second_last(&op.key),
        _ => return None,
    })
}

/// Every element on the side of the first weight dimension is multiplied with one filter.
fn convolution(side: &TensorIr, weight: &TensorIr) -> u64 {
    2 * elements(side) * elements(weight) / (weight.shape.first().copied().unwrap_or(1).max(1) as u64)
}

fn elements(tensor: &TensorIr) -> u64 {
    tensor.shape.num_elements() as u64
}

fn last(tensor: &TensorIr) -> u64 {
    tensor.shape.last().copied().unwrap_or(1) as u64
}

fn second_last(tensor: &TensorIr) -> u64 {
    tensor.shape.iter().rev().nth(1).copied().unwrap_or(1) as u64
}
