//! Grouped matmuls: uneven groups of rows, each times its own matrix.
//!
//! Blocks of [`BLOCK`] rows never cross from one expert to the next. A unit finds its block's expert by counting blocks
//! from the offsets, so the host does not need them, and the launch covers the largest possible number of blocks. Each
//! unit keeps a block of sums in registers and reads the matrix once for all of them.

#![allow(clippy::manual_div_ceil, reason = "kernels say which operations they take")]

use super::launch::{empty, launch, types, vector_size};
use burn::backend::TensorMetadata;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

/// The number of rows (or columns, for the gradient of matrices) that a unit computes together.
const BLOCK: usize = 4;

/// The expert of a block, its first row, and the end of the expert's rows. For rows of no expert, the expert index is
/// one past the last.
#[cube]
fn find_block(
    offsets: &Tensor<i32>,
    block: usize,
    experts: usize,
    rows: usize,
    #[comptime] size: usize,
) -> (usize, usize, usize) {
    let mut left = block;
    let mut expert = 0usize;
    let mut searching = true;
    while searching && expert < experts {
        let count = usize::cast_from(offsets[expert + 1] - offsets[expert]);
        let blocks = (count + size - 1) / size;
        if left < blocks {
            searching = false;
        } else {
            left -= blocks;
            expert += 1;
        }
    }
    let first = usize::cast_from(offsets[expert]) + left * size;
    let mut end = rows;
    if !searching {
        end = usize::cast_from(offsets[expert + 1]);
    }
    (expert, first, end)
}

/// One unit per block of rows and vector of columns.
#[cube(launch, address_type = "dynamic")]
fn product<F: Float, A: Float, N: Size>(
    x: &Tensor<F>,
    weight: &Tensor<Vector<F, N>>,
    offsets: &Tensor<i32>,
    y: &mut Tensor<Vector<F, N>>,
    rows: usize,
    experts: usize,
    inner: usize,
    width: usize,
    #[comptime] size: usize,
    #[define(F, A)] _types: [ElemType; 2],
) {
    let column = ABSOLUTE_POS % width;
    let (expert, first, end) = find_block(offsets, ABSOLUTE_POS / width, experts, rows, size);
    let mut sums = Array::<Vector<A, N>>::new(size);
    #[unroll]
    for row in 0..size {
        sums[row] = Vector::new(A::new(0.0));
    }
    if expert < experts {
        let matrix = expert * inner * width + column;
        for k in 0..inner {
            let factor = Vector::<A, N>::cast_from(weight[matrix + k * width]);
            #[unroll]
            for row in 0..size {
                // A unit at the end reads the last row again instead of branching; those sums are not written.
                let value = A::cast_from(x[min(first + row, end - 1) * inner + k]);
                sums[row] += factor * Vector::<A, N>::new(value);
            }
        }
    }
    #[unroll]
    for row in 0..size {
        if first + row < end {
            y[(first + row) * width + column] = Vector::cast_from(sums[row]);
        }
    }
}

/// One unit per block of rows and column of the input.
#[cube(launch, address_type = "dynamic")]
fn product_transposed<F: Float, A: Float, N: Size>(
    of_y: &Tensor<Vector<F, N>>,
    weight: &Tensor<Vector<F, N>>,
    offsets: &Tensor<i32>,
    of_x: &mut Tensor<F>,
    rows: usize,
    experts: usize,
    inner: usize,
    width: usize,
    #[comptime] size: usize,
    #[define(F, A)] _types: [ElemType; 2],
) {
    let k = ABSOLUTE_POS % inner;
    let (expert, first, end) = find_block(offsets, ABSOLUTE_POS / inner, experts, rows, size);
    let mut sums = Array::<Vector<A, N>>::new(size);
    #[unroll]
    for row in 0..size {
        sums[row] = Vector::new(A::new(0.0));
    }
    if expert < experts {
        let line = (expert * inner + k) * width;
        for column in 0..width {
            let factor = Vector::<A, N>::cast_from(weight[line + column]);
            #[unroll]
            for row in 0..size {
                let value = of_y[min(first + row, end - 1) * width + column];
                sums[row] += factor * Vector::<A, N>::cast_from(value);
            }
        }
    }
    #[unroll]
    for row in 0..size {
        if first + row < end {
            let sum = sums[row];
            let mut total = A::new(0.0);
            #[unroll]
            for place in 0..sum.vector_size() {
                total += sum.extract(place);
            }
            of_x[(first + row) * inner + k] = F::cast_from(total);
        }
    }
}

/// One unit per expert, block of rows of its matrix, and vector of columns.
#[cube(launch, address_type = "dynamic")]
fn product_of_rows<F: Float, A: Float, N: Size>(
    x: &Tensor<F>,
    of_y: &Tensor<Vector<F, N>>,
    offsets: &Tensor<i32>,
    of_weight: &mut Tensor<Vector<F, N>>,
    experts: usize,
    inner: usize,
    width: usize,
    #[comptime] size: usize,
    #[define(F, A)] _types: [ElemType; 2],
) {
    let column = ABSOLUTE_POS % width;
    let blocks = (inner + size - 1) / size;
    let first = ABSOLUTE_POS / width % blocks * size;
    let expert = ABSOLUTE_POS / width / blocks;
    if expert >= experts {
        terminate!();
    }
    let mut sums = Array::<Vector<A, N>>::new(size);
    #[unroll]
    for k in 0..size {
        sums[k] = Vector::new(A::new(0.0));
    }
    for row in usize::cast_from(offsets[expert])..usize::cast_from(offsets[expert + 1]) {
        let factor = Vector::<A, N>::cast_from(of_y[row * width + column]);
        #[unroll]
        for k in 0..size {
            let value = A::cast_from(x[row * inner + min(first + k, inner - 1)]);
            sums[k] += factor * Vector::<A, N>::new(value);
        }
    }
    #[unroll]
    for k in 0..size {
        if first + k < inner {
            of_weight[(expert * inner + first + k) * width + column] = Vector::cast_from(sums[k]);
        }
    }
}

/// The largest possible number of blocks: one partial block per expert, and one for rows of no expert.
fn most_blocks(rows: usize, experts: usize) -> usize {
    rows / BLOCK + experts + 1
}

/// Rows `[n, d]` times matrices `[e, d, h]`.
pub(super) fn forward(x: CubeTensor, weight: CubeTensor, offsets: CubeTensor) -> CubeTensor {
    let ([rows, inner], [experts, _, h]) = (x.shape().dims(), weight.shape().dims());
    let vector = vector_size(&x, h);
    let y = empty(&x, [rows, h], x.dtype);
    let width = h / vector;
    launch!(
        product by vector, most_blocks(rows, experts) * width, on x, over [x, weight, y],
        [x, weight, offsets, y],
        [rows, experts, inner, width, BLOCK, types(x.dtype)]
    );
    y
}

/// The gradient of the rows: gradients `[n, h]` times the transposed matrices.
pub(super) fn input(of_y: CubeTensor, weight: CubeTensor, offsets: CubeTensor) -> CubeTensor {
    let ([rows, h], [experts, inner, _]) = (of_y.shape().dims(), weight.shape().dims());
    let vector = vector_size(&of_y, h);
    let of_x = empty(&of_y, [rows, inner], of_y.dtype);
    launch!(
        product_transposed by vector, most_blocks(rows, experts) * inner, on of_y, over [of_y, weight, of_x],
        [of_y, weight, offsets, of_x],
        [rows, experts, inner, h / vector, BLOCK, types(of_y.dtype)]
    );
    of_x
}

/// The gradient of the matrices: each expert's rows, transposed, times their gradients.
pub(super) fn weight(x: CubeTensor, of_y: CubeTensor, offsets: CubeTensor) -> CubeTensor {
    let ([_, inner], [_, h], [bounds]) = (x.shape().dims(), of_y.shape().dims(), offsets.shape().dims());
    let (vector, experts) = (vector_size(&x, h), bounds - 1);
    let of_weight = empty(&x, [experts, inner, h], x.dtype);
    let width = h / vector;
    launch!(
        product_of_rows by vector, experts * inner.div_ceil(BLOCK) * width, on x, over [x, of_y, of_weight],
        [x, of_y, offsets, of_weight],
        [experts, inner, width, BLOCK, types(x.dtype)]
    );
    of_weight
}
