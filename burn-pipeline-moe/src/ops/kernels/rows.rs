//! Permutes tokens to rows and back. One unit per vector of numbers; each vector is written once.
//!
//! 1. `spread` copies each row's token, times the gate if gates are given; rows without a choice are zero.
//! 2. `collect` adds each token's rows, times the gates if given. Each of the two is the other's backward.
//! 3. `gates_backward` takes the dot product of each row with its token's gradient, in up to 32 parts.

use super::launch::{PART, empty, launch, types, vector_size};
use crate::ops::specs::accumulator;
use burn::backend::TensorMetadata;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

/// How many units share the dot product of one row with one gradient. Adjacent units read adjacent numbers.
const LANES: usize = 32;

/// One unit per vector of a row: copies that of the row's token, times the gate if gates are given.
#[cube(launch, address_type = "dynamic")]
fn spread_tokens<F: Float, A: Float, N: Size>(
    of_tokens: &Tensor<Vector<F, N>>,
    gates: &Tensor<F>,
    choice_of_row: &Tensor<i32>,
    rows: &mut Tensor<Vector<F, N>>,
    tokens: usize,
    choices: usize,
    width: usize,
    #[comptime] weighted: bool,
    #[define(F, A)] _types: [ElemType; 2],
) {
    let index = ABSOLUTE_POS;
    if index >= choices * width {
        terminate!();
    }
    let choice = usize::cast_from(choice_of_row[index / width]);
    if choice < choices {
        let token = choice % tokens;
        let value = of_tokens[token * width + index % width];
        if comptime![weighted] {
            let gate = A::cast_from(gates[token * (choices / tokens) + choice / tokens]);
            rows[index] = Vector::cast_from(Vector::<A, N>::cast_from(value) * Vector::<A, N>::new(gate));
        } else {
            rows[index] = value;
        }
    } else {
        rows[index] = Vector::<F, N>::new(F::new(0.0));
    }
}

/// One unit per vector of a token: sums its rows, times the gates if gates are given.
#[cube(launch, address_type = "dynamic")]
fn collect_rows<F: Float, A: Float, N: Size>(
    rows: &Tensor<Vector<F, N>>,
    gates: &Tensor<F>,
    row_of_choice: &Tensor<i32>,
    of_tokens: &mut Tensor<Vector<F, N>>,
    tokens: usize,
    choices: usize,
    width: usize,
    #[comptime] weighted: bool,
    #[define(F, A)] _types: [ElemType; 2],
) {
    let index = ABSOLUTE_POS;
    if index >= tokens * width {
        terminate!();
    }
    let (token, k) = (index / width, choices / tokens);
    let mut sum = Vector::<A, N>::new(A::new(0.0));
    for choice in 0..k {
        let row = usize::cast_from(row_of_choice[choice * tokens + token]);
        if row < choices {
            let value = Vector::<A, N>::cast_from(rows[row * width + index % width]);
            if comptime![weighted] {
                sum += value * Vector::<A, N>::new(A::cast_from(gates[token * k + choice]));
            } else {
                sum += value;
            }
        }
    }
    of_tokens[index] = Vector::cast_from(sum);
}

/// One unit per choice and lane: a part of the dot product of the choice's row with its token's gradient.
#[cube(launch, address_type = "dynamic")]
fn products_of_lanes<F: Float, A: Float, N: Size>(
    of_tokens: &Tensor<Vector<F, N>>,
    rows: &Tensor<Vector<F, N>>,
    row_of_choice: &Tensor<i32>,
    products: &mut Tensor<A>,
    tokens: usize,
    choices: usize,
    width: usize,
    #[comptime] lanes: usize,
    #[define(F, A)] _types: [ElemType; 2],
) {
    let index = ABSOLUTE_POS;
    if index >= choices * lanes {
        terminate!();
    }
    let choice = index / lanes;
    let row = usize::cast_from(row_of_choice[choice]);
    let mut sum = Vector::<A, N>::new(A::new(0.0));
    if row < choices {
        let token = choice % tokens;
        let mut column = index % lanes;
        while column < width {
            let value = Vector::<A, N>::cast_from(rows[row * width + column]);
            sum += value * Vector::<A, N>::cast_from(of_tokens[token * width + column]);
            column += lanes;
        }
    }
    let mut product = A::new(0.0);
    #[unroll]
    for place in 0..sum.vector_size() {
        product += sum.extract(place);
    }
    products[index] = product;
}

/// One unit per gate: the sum of its lanes.
#[cube(launch, address_type = "dynamic")]
fn sums_of_lanes<F: Float, A: Float>(
    products: &Tensor<A>,
    of_gates: &mut Tensor<F>,
    tokens: usize,
    choices: usize,
    #[comptime] lanes: usize,
    #[define(F, A)] _types: [ElemType; 2],
) {
    let index = ABSOLUTE_POS;
    if index >= choices {
        terminate!();
    }
    let k = choices / tokens;
    let choice = index % k * tokens + index / k;
    let mut sum = A::new(0.0);
    for lane in 0..lanes {
        sum += products[choice * lanes + lane];
    }
    of_gates[index] = F::cast_from(sum);
}

/// Rows `[choices, d]` of tokens `[t, d]`.
pub(super) fn spread(of_tokens: CubeTensor, gates: Option<CubeTensor>, choice_of_row: CubeTensor) -> CubeTensor {
    let ([tokens, d], [choices]) = (of_tokens.shape().dims(), choice_of_row.shape().dims());
    let vector = vector_size(&of_tokens, d);
    let rows = empty(&of_tokens, [choices, d], of_tokens.dtype);
    let width = d / vector;
    let weighted = gates.is_some();
    // Kernel arguments cannot be absent: without gates another tensor is passed, which is not read.
    launch!(
        spread_tokens by vector, choices * width, on rows, over [of_tokens, rows],
        [of_tokens, gates.unwrap_or_else(|| of_tokens.clone()), choice_of_row, rows],
        [tokens, choices, width, weighted, types(of_tokens.dtype)]
    );
    rows
}

/// Sums `[t, d]` of rows `[choices, d]`.
pub(super) fn collect(
    rows: CubeTensor,
    gates: Option<CubeTensor>,
    row_of_choice: CubeTensor,
    tokens: usize,
) -> CubeTensor {
    let [choices, d] = rows.shape().dims();
    let vector = vector_size(&rows, d);
    let of_tokens = empty(&rows, [tokens, d], rows.dtype);
    let width = d / vector;
    let weighted = gates.is_some();
    launch!(
        collect_rows by vector, tokens * width, on rows, over [rows, of_tokens],
        [rows, gates.unwrap_or_else(|| rows.clone()), row_of_choice, of_tokens],
        [tokens, choices, width, weighted, types(rows.dtype)]
    );
    of_tokens
}

/// The gradient of the gates `[t, k]`.
pub(super) fn gates_backward(of_tokens: CubeTensor, rows: CubeTensor, row_of_choice: CubeTensor) -> CubeTensor {
    let ([tokens, d], [choices, _]) = (of_tokens.shape().dims(), rows.shape().dims());
    let (vector, types) = (vector_size(&rows, d), types(rows.dtype));
    let width = d / vector;
    // Narrow rows need fewer lanes.
    let lanes = width.div_ceil(PART).clamp(1, LANES);
    let products = empty(&rows, [choices, lanes], accumulator(rows.dtype));
    launch!(
        products_of_lanes by vector, choices * lanes, on rows, over [rows, of_tokens, products],
        [of_tokens, rows, row_of_choice, products],
        [tokens, choices, width, lanes, types]
    );
    let of_gates = empty(&rows, [tokens, choices / tokens], rows.dtype);
    launch!(
        sums_of_lanes, choices, on rows, over [rows, of_tokens, products],
        [products, of_gates],
        [tokens, choices, lanes, types]
    );
    of_gates
}
