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

/// A matrix with its row and column strides.
type Matrix = (*const f32, isize, isize);

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
        let lies = |values: &[f32], columns: usize| (values.as_ptr(), columns.cast_signed(), 1);
        let turned = |(at, row, column): Matrix| (at, column, row);
        multiply([rows, depth, columns], lies(left, depth), lies(right, columns), product);
        multiply([rows, columns, depth], lies(product, columns), turned(lies(right, columns)), left);
        multiply([depth, rows, columns], turned(lies(left, depth)), lies(product, columns), right);
    }
}

fn multiply([rows, depth, columns]: [usize; 3], left: Matrix, right: Matrix, to: &mut [f32]) {
    assert_eq!(to.len(), rows * columns, "the result has the wrong number of elements");
    // SAFETY: the matrices have these numbers of rows and columns, and the result overlaps neither.
    unsafe {
        gemm(
            rows,
            columns,
            depth,
            to.as_mut_ptr(),
            1,
            columns.cast_signed(),
            false,
            left.0,
            left.2,
            left.1,
            right.0,
            right.2,
            right.1,
            0.0_f32,
            // Results stay small, since they are operands of the next matmul.
            1e-3,
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
