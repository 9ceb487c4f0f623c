//! The matmuls of a step alone: a lower bound on the time of any step.
//!
//! 1. Each matmul of a forward has two more in the backward, one for each operand's gradient. All run with a step's
//!    layouts and sizes, on the kernels of Burn's Flex backend (crate `gemm`), on one thread.
//! 2. Matmuls of one kind share their matrices, which are therefore in the cache more often than a step's.

use crate::gpt_step::{BATCH, MICROBATCHES};
use gemm::{Parallelism, gemm};
use pipeline_examples::gpt::GptConfig;
use std::time::Instant;

/// The matmuls of a step.
#[derive(Debug)]
pub struct Roofline {
    kinds: Vec<Kind>,
}

/// Matmuls of one size: `rows x depth` times `depth x columns`, in row-major storage.
#[derive(Debug)]
struct Kind {
    rows: usize,
    depth: usize,
    columns: usize,
    count: usize,
    left: Vec<f32>,
    right: Vec<f32>,
    product: Vec<f32>,
}

/// A matrix in row-major storage, and whether its transpose is multiplied.
pub type Matrix<'a> = (&'a [f32], bool);

impl Kind {
    fn new([rows, depth, columns]: [usize; 3], count: usize) -> Self {
        let values = |length: usize| (0..length).map(|at| (at % 97) as f32 * 0.01 - 0.5).collect();
        let [left, right, product] = [rows * depth, depth * columns, rows * columns].map(values);
        Self { rows, depth, columns, count, left, right, product }
    }

    /// The matmul, then both gradients.
    fn run(&mut self) {
        let Self { rows, depth, columns, left, right, product, .. } = self;
        let (rows, depth, columns) = (*rows, *depth, *columns);
        // Results stay small, since they are operands of the next matmul.
        let scale = 1e-3;
        multiply([rows, depth, columns], (left, false), (right, false), scale, product);
        multiply([rows, columns, depth], (product, false), (right, true), scale, left);
        multiply([depth, rows, columns], (left, true), (product, false), scale, right);
    }
}

/// Writes `scale` times `rows x depth` times `depth x columns`, by the crate `gemm` on one thread.
pub fn multiply([rows, depth, columns]: [usize; 3], left: Matrix, right: Matrix, scale: f32, to: &mut [f32]) {
    let sizes = [left.0.len(), right.0.len(), to.len()];
    assert_eq!(sizes, [rows * depth, depth * columns, rows * columns], "a matrix has the wrong number of elements");
    let strides = |[rows, columns]: [usize; 2], transposed: bool| match transposed {
        true => (1, rows.cast_signed()),
        false => (columns.cast_signed(), 1),
    };
    let (left_row, left_column) = strides([rows, depth], left.1);
    let (right_row, right_column) = strides([depth, columns], right.1);
    // SAFETY: the three matrices have these sizes, and the result overlaps neither operand: it is borrowed alone.
    unsafe {
        gemm(
            rows,
            columns,
            depth,
            to.as_mut_ptr(),
            1,
            columns.cast_signed(),
            false,
            left.0.as_ptr(),
            left_column,
            left_row,
            right.0.as_ptr(),
            right_column,
            right_row,
            0.0_f32,
            scale,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}

impl Roofline {
    /// The matmuls for the bench's batch and microbatches.
    pub fn new(config: &GptConfig) -> Self {
        let samples = BATCH / MICROBATCHES;
        let (width, rows, each) = (config.d_model, samples * config.seq, config.d_model / config.heads);
        let (layers, heads) = (config.layers * MICROBATCHES, config.layers * MICROBATCHES * samples * config.heads);
        let linear = |from, to, count| Kind::new([rows, from, to], count);
        let kinds = vec![
            linear(width, 3 * width, layers),
            linear(width, width, layers),
            linear(width, 4 * width, layers),
            linear(4 * width, width, layers),
            linear(width, config.vocab, MICROBATCHES),
            Kind::new([config.seq, each, config.seq], heads),
            Kind::new([config.seq, config.seq, each], heads),
        ];
        Self { kinds }
    }

    /// The floating-point operations of a step's matmuls.
    pub fn flops(&self) -> f64 {
        let each = |kind: &Kind| 6 * kind.rows * kind.depth * kind.columns * kind.count;
        self.kinds.iter().map(each).sum::<usize>() as f64
    }

    /// Runs all of them; returns the seconds.
    pub fn run(&mut self) -> f64 {
        let began = Instant::now();
        self.kinds.iter_mut().for_each(|kind| (0..kind.count).for_each(|_| kind.run()));
        began.elapsed().as_secs_f64()
    }
}
