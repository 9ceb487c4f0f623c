//! Convolutions over rows and columns of images as products of matrices, and their gradients.
//!
//! Guarantees: numbers depend neither on the number of threads nor on how tensors lie. Each element is a sum of the products that the
//! convolution's definition has, in another order than Flex's. Memory beside the result is one block of windows for each thread.
//!
//! 1. What the elements of an output's rows read of a sample, their windows, becomes a matrix ([`windows`]): a row for each element of a
//!    window, a column for each window. So many rows of the output make a block that its windows stay in the cache.
//! 2. The output is the weight times the windows. The weight's gradient is the output's gradient times the windows, turned, added up over
//!    blocks and samples in order. The input's gradient is the weight, turned, times the output's gradient, each element of which is added
//!    to where the window read it. Windows of one element are the image itself.
//! 3. Threads share out blocks of the output, samples of the input's gradient, and channels of the weight's.
//!
//! K. Chellapilla, S. Puri and P. Simard, High Performance Convolutional Neural Networks for Document Processing (2006).

mod blocks;
mod read;
mod windows;

pub(crate) use read::{Read, bias_gradient, read};

use crate::multiply::{Bf16, Elements, Matrix};
use crate::product::{PARALLEL_BATCH, multiply};
use crate::storage::Fresh;
use burn::backend::flex::FlexTensor;
use burn::backend::ir::TensorIr;
use gemm::Parallelism;
use rayon::prelude::*;
use std::fmt::{Display, Formatter};
use std::ops::Range;
use windows::{Window, with_windows};

/// What is computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wanted {
    /// From the input and the weight.
    Output,
    /// The gradient of the input, from the weight and the gradient of the output.
    Input,
    /// The gradient of the weight, from the input and the gradient of the output.
    Weight,
}

/// A convolution without groups or bias, or one of its gradients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Convolution {
    pub(crate) wanted: Wanted,
    /// Samples, channels, rows and columns.
    input: [usize; 4],
    output: [usize; 4],
    window: Window,
}

#[derive(Clone, Copy)]
struct Shared(*mut f32);

// SAFETY: each piece of work writes elements of its own.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// # Safety
    /// The place is within the storage.
    unsafe fn at(self, place: usize) -> *mut f32 {
        // SAFETY: the caller's promise.
        unsafe { self.0.add(place) }
    }
}

impl Convolution {
    /// Computes what is wanted of two tensors; operands of products are rounded where that is said.
    ///
    /// # Safety
    /// The tensors have the shapes of the operation that this was read from ([`read`]), and `f32` elements.
    pub(crate) unsafe fn run(
        &self,
        [first, second]: [&FlexTensor; 2],
        output: &TensorIr,
        rounded: Option<Bf16>,
    ) -> FlexTensor {
        let tensors = [first.to_contiguous(), second.to_contiguous()];
        let operands = [&tensors[0], &tensors[1]].map(|tensor| tensor.as_slice::<f32>().unwrap_or_default());
        let elements = output.shape.num_elements();
        let mut fresh = match self.wanted {
            Wanted::Output => Fresh::floats(elements),
            Wanted::Input | Wanted::Weight => Fresh::zeros(elements),
        };
        let to = Shared(fresh.as_floats());
        match self.wanted {
            Wanted::Output => self.pieces(self.blocks_of_samples(), |(sample, rows)| {
                // SAFETY: the result is the output, and each piece writes rows of its own.
                unsafe { self.output_of(sample, rows, operands, to, rounded) };
            }),
            Wanted::Input => self.pieces((0..self.input[0]).collect(), |sample| {
                // SAFETY: the result is the gradient, all zeros, and each piece writes a sample of its own.
                unsafe { self.input_gradient_of(sample, operands, to, rounded) };
            }),
            Wanted::Weight => self.pieces(self.blocks_of_channels(), |channels| {
                // SAFETY: the result is the gradient, all zeros, and each piece writes channels of its own.
                unsafe { self.weight_gradient_of(channels, operands, to, rounded) };
            }),
        }
        // SAFETY: every element was written.
        let mut given = unsafe { fresh.tensors(std::slice::from_ref(output)) };
        given.swap_remove(0).1
    }

    /// Elements of a window over all channels.
    fn depth(&self) -> usize {
        self.input[1] * self.window.elements()
    }

    /// Runs pieces of the work, on all threads where it is worth it.
    fn pieces<T: Send>(&self, pieces: Vec<T>, run: impl Fn(T) + Sync + Send) {
        let work = self.output.iter().product::<usize>() * self.depth();
        match work >= PARALLEL_BATCH && rayon::current_num_threads() > 1 {
            true => pieces.into_par_iter().for_each(run),
            false => pieces.into_iter().for_each(run),
        }
    }

    /// # Safety
    /// `to` is the output, and nobody else writes these rows of it.
    unsafe fn output_of(
        &self,
        sample: usize,
        rows: Range<usize>,
        [input, weight]: [&[f32]; 2],
        to: Shared,
        rounded: Option<Bf16>,
    ) {
        let ([_, channels, ..], [_, features, _, columns]) = (self.input, self.output);
        let ((image, area), depth) = (self.areas(), self.depth());
        let image = &input[sample * channels * image..][..channels * image];
        let sizes = [features, rows.len() * columns, depth];
        // SAFETY: these rows lie within the output.
        let at = unsafe { to.at(sample * features * area + rows.start * columns) };
        let to = Matrix { at, row: area.cast_signed(), column: 1 };
        let weight = matrix(weight, depth, 1);
        let product = |windows: Matrix<Elements>| {
            // SAFETY: the caller's promise; operands have these sizes.
            unsafe { multiply(sizes, to, [weight, windows], false, Parallelism::None, rounded) };
        };
        if self.is_pointwise() {
            return product(matrix(&image[rows.start * columns..], area, 1));
        }
        with_windows(depth * sizes[1], |windows| {
            self.window.read(image, [self.input[2], self.input[3]], rows, columns, windows);
            product(matrix(windows, sizes[1], 1));
        });
    }

    /// # Safety
    /// `to` is the input's gradient, all zeros, and nobody else writes this sample of it.
    unsafe fn input_gradient_of(
        &self,
        sample: usize,
        [weight, gradient]: [&[f32]; 2],
        to: Shared,
        rounded: Option<Bf16>,
    ) {
        let ([_, channels, ..], [_, features, _, columns]) = (self.input, self.output);
        let ((image, area), depth) = (self.areas(), self.depth());
        // SAFETY: the sample lies within the gradient.
        let to = unsafe { to.at(sample * channels * image) };
        let weight = matrix(weight, 1, depth);
        for rows in self.blocks(depth) {
            let gradient = matrix(&gradient[sample * features * area + rows.start * columns..], area, 1);
            let sizes = [depth, rows.len() * columns, features];
            let product = |at: *mut f32, row: usize| {
                let to = Matrix { at, row: row.cast_signed(), column: 1 };
                // SAFETY: the caller's promise; operands have these sizes.
                unsafe { multiply(sizes, to, [weight, gradient], false, Parallelism::None, rounded) };
            };
            if self.is_pointwise() {
                // SAFETY: these rows lie within the sample.
                product(unsafe { to.add(rows.start * columns) }, area);
                continue;
            }
            with_windows(depth * sizes[1], |windows| {
                product(windows.as_mut_ptr(), sizes[1]);
                // SAFETY: the caller's promise.
                let image = unsafe { std::slice::from_raw_parts_mut(to, channels * image) };
                self.window.add_back(windows, [self.input[2], self.input[3]], rows, columns, image);
            });
        }
    }

    /// # Safety
    /// `to` is the weight's gradient, all zeros, and nobody else writes these channels of it.
    unsafe fn weight_gradient_of(
        &self,
        channels: Range<usize>,
        [input, gradient]: [&[f32]; 2],
        to: Shared,
        rounded: Option<Bf16>,
    ) {
        let ([samples, all, ..], [_, features, _, columns]) = (self.input, self.output);
        let ((image, area), elements) = (self.areas(), self.window.elements());
        let depth = channels.len() * elements;
        // SAFETY: these columns lie within the gradient.
        let at = unsafe { to.at(channels.start * elements) };
        let to = Matrix { at, row: self.depth().cast_signed(), column: 1 };
        let blocks = (0..samples).flat_map(|sample| self.blocks(depth).map(move |rows| (sample, rows)));
        for (sample, rows) in blocks {
            let image = &input[(sample * all + channels.start) * image..][..channels.len() * image];
            let gradient = matrix(&gradient[sample * features * area + rows.start * columns..], area, 1);
            let sizes = [features, depth, rows.len() * columns];
            let product = |windows: Matrix<Elements>| {
                // SAFETY: the caller's promise; operands have these sizes.
                unsafe { multiply(sizes, to, [gradient, windows], true, Parallelism::None, rounded) };
            };
            if self.is_pointwise() {
                product(matrix(&image[rows.start * columns..], 1, area));
                continue;
            }
            with_windows(depth * sizes[2], |windows| {
                self.window.read(image, [self.input[2], self.input[3]], rows, columns, windows);
                product(matrix(windows, 1, sizes[2]));
            });
        }
    }
}

impl Display for Convolution {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let name = match self.wanted {
            Wanted::Output => "Convolution",
            Wanted::Input => "Convolution's gradient of the input",
            Wanted::Weight => "Convolution's gradient of the weight",
        };
        f.write_str(name)
    }
}

/// A matrix that begins with the first of these values.
fn matrix(values: &[f32], row: usize, column: usize) -> Matrix<Elements> {
    Matrix { at: Elements::F32(values.as_ptr()), row: row.cast_signed(), column: column.cast_signed() }
}
