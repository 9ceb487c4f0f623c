//! Two-dimensional convolutions, and their gradients, as matmuls.
//!
//! Guarantees: results do not depend on the number of threads or on the layout of tensors. Each element is a sum of
//! the products in the convolution's definition, in an order that differs from Flex's. Beside the result, each thread
//! needs memory for one block of windows.
//!
//! 1. The elements of a sample that some rows of the output read, their windows, are copied to a matrix
//!    ([`windows`]): one row for each element of a window, one column for each window. The rows of the output are cut
//!    into blocks whose windows fit in the cache.
//! 2. The output is the weight times the windows. The weight's gradient is the output's gradient times the transposed
//!    windows, added up over blocks and samples in order. The input's gradient is the transposed weight times the
//!    output's gradient; each of its elements is added to the element of the image that the window read. Windows of
//!    one element are the image itself.
//! 3. Threads divide the blocks of the output, the samples of the input's gradient, and the channels of the weight's
//!    gradient.
//!
//! K. Chellapilla, S. Puri and P. Simard, High Performance Convolutional Neural Networks for Document Processing
//! (2006).
//!
//! Grouped convolutions are left to the interpreter.

mod blocks;
mod windows;

use crate::convolution::{Convolution, Wanted};
use crate::matmul::PARALLEL_BATCH;
use crate::matmul_kernel::multiply;
use crate::multiply::{Bf16, Elements, Matrix};
use crate::storage::{Fresh, Shared};
use burn::backend::flex::FlexTensor;
use burn::backend::ir::TensorIr;
use gemm::Parallelism;
use rayon::prelude::*;
use std::ops::Range;
use windows::with_windows;

impl Convolution {
    /// Computes the result from two tensors. Rounds operands of matmuls if `rounded` is given.
    ///
    /// # Safety
    /// The tensors have the shapes of the operation from which this was read, and `f32` elements.
    pub(crate) unsafe fn run(
        &self,
        [first, second]: [&FlexTensor; 2],
        output: &TensorIr,
        rounded: Option<Bf16>,
    ) -> FlexTensor {
        let tensors = [first.to_contiguous(), second.to_contiguous()];
        let operands = [&tensors[0], &tensors[1]].map(|tensor| tensor.as_slice::<f32>().unwrap_or_default());
        let mut fresh = match self.wanted {
            Wanted::Output => Fresh::of(output),
            Wanted::Input | Wanted::Weight => Fresh::of(output).zeroed(),
        };
        let to = Shared(fresh.as_floats());
        match self.wanted {
            Wanted::Output => self.pieces(self.blocks_of_samples(self.depth()).collect(), |(sample, rows)| {
                // SAFETY: the result is the output, and each piece writes its own rows.
                unsafe { self.output_of(sample, rows, operands, to, rounded) };
            }),
            Wanted::Input => self.pieces((0..self.input[0]).collect(), |sample| {
                // SAFETY: the result is the gradient, all zeros, and each piece writes its own sample.
                unsafe { self.input_gradient_of(sample, operands, to, rounded) };
            }),
            Wanted::Weight => self.pieces(self.blocks_of_channels(), |channels| {
                // SAFETY: the result is the gradient, all zeros, and each piece writes its own channels.
                unsafe { self.weight_gradient_of(channels, operands, to, rounded) };
            }),
        }
        // SAFETY: every element was written.
        unsafe { fresh.tensor(output) }
    }

    /// Runs pieces of the work, on all threads if that pays.
    fn pieces<T: Send>(&self, pieces: Vec<T>, run: impl Fn(T) + Sync + Send) {
        let work = self.output.iter().product::<usize>() * self.depth();
        match work >= PARALLEL_BATCH && rayon::current_num_threads() > 1 {
            true => pieces.into_par_iter().for_each(run),
            false => pieces.into_iter().for_each(run),
        }
    }

    /// # Safety
    /// `to` is the output, and nothing else writes these rows of it.
    unsafe fn output_of(
        &self,
        sample: usize,
        rows: Range<usize>,
        [input, weight]: [&[f32]; 2],
        to: Shared<f32>,
        rounded: Option<Bf16>,
    ) {
        let ([_, channels, ..], [_, features, _, columns]) = (self.input, self.output);
        let ((image, area), depth) = (self.areas(), self.depth());
        let image = &input[sample * channels * image..][..channels * image];
        let sizes = [features, rows.len() * columns, depth];
        // SAFETY: these rows are within the output.
        let at = unsafe { to.at(sample * features * area + rows.start * columns) };
        let to = Matrix { at, row: area.cast_signed(), column: 1 };
        let weight = matrix(weight, depth, 1);
        let matmul = |windows: Matrix<Elements>| {
            // SAFETY: guaranteed by the caller; operands have these sizes.
            unsafe { multiply(sizes, to, [weight, windows], false, Parallelism::None, rounded) };
        };
        if self.is_pointwise() {
            return matmul(matrix(&image[rows.start * columns..], area, 1));
        }
        with_windows(depth * sizes[1], |windows| {
            self.window.read(image, [self.input[2], self.input[3]], rows, columns, windows);
            matmul(matrix(windows, sizes[1], 1));
        });
    }

    /// # Safety
    /// `to` is the input's gradient, all zeros, and nothing else writes this sample of it.
    unsafe fn input_gradient_of(
        &self,
        sample: usize,
        [weight, gradient]: [&[f32]; 2],
        to: Shared<f32>,
        rounded: Option<Bf16>,
    ) {
        let ([_, channels, ..], [_, features, _, columns]) = (self.input, self.output);
        let ((image, area), depth) = (self.areas(), self.depth());
        // SAFETY: the sample is within the gradient.
        let to = unsafe { to.at(sample * channels * image) };
        let weight = matrix(weight, 1, depth);
        for rows in self.blocks(depth) {
            let gradient = matrix(&gradient[sample * features * area + rows.start * columns..], area, 1);
            let sizes = [depth, rows.len() * columns, features];
            let matmul = |at: *mut f32, row: usize| {
                let to = Matrix { at, row: row.cast_signed(), column: 1 };
                // SAFETY: guaranteed by the caller; operands have these sizes.
                unsafe { multiply(sizes, to, [weight, gradient], false, Parallelism::None, rounded) };
            };
            if self.is_pointwise() {
                // SAFETY: these rows are within the sample.
                matmul(unsafe { to.add(rows.start * columns) }, area);
                continue;
            }
            with_windows(depth * sizes[1], |windows| {
                matmul(windows.as_mut_ptr(), sizes[1]);
                // SAFETY: guaranteed by the caller.
                let image = unsafe { std::slice::from_raw_parts_mut(to, channels * image) };
                self.window.add_back(windows, [self.input[2], self.input[3]], rows, columns, image);
            });
        }
    }

    /// # Safety
    /// `to` is the weight's gradient, all zeros, and nothing else writes these channels of it.
    unsafe fn weight_gradient_of(
        &self,
        channels: Range<usize>,
        [input, gradient]: [&[f32]; 2],
        to: Shared<f32>,
        rounded: Option<Bf16>,
    ) {
        let ([_, all, ..], [_, features, _, columns]) = (self.input, self.output);
        let ((image, area), elements) = (self.areas(), self.window.elements());
        let depth = channels.len() * elements;
        // SAFETY: these columns are within the gradient.
        let at = unsafe { to.at(channels.start * elements) };
        let to = Matrix { at, row: self.depth().cast_signed(), column: 1 };
        for (sample, rows) in self.blocks_of_samples(depth) {
            let image = &input[(sample * all + channels.start) * image..][..channels.len() * image];
            let gradient = matrix(&gradient[sample * features * area + rows.start * columns..], area, 1);
            let sizes = [features, depth, rows.len() * columns];
            let matmul = |windows: Matrix<Elements>| {
                // SAFETY: guaranteed by the caller; operands have these sizes.
                unsafe { multiply(sizes, to, [gradient, windows], true, Parallelism::None, rounded) };
            };
            if self.is_pointwise() {
                matmul(matrix(&image[rows.start * columns..], 1, area));
                continue;
            }
            with_windows(depth * sizes[2], |windows| {
                self.window.read(image, [self.input[2], self.input[3]], rows, columns, windows);
                matmul(matrix(windows, 1, sizes[2]));
            });
        }
    }
}

/// A matrix that starts at the first of these values.
fn matrix(values: &[f32], row: usize, column: usize) -> Matrix<Elements> {
    Matrix { at: Elements::F32(values.as_ptr()), row: row.cast_signed(), column: column.cast_signed() }
}
