//! The padding that Burn's convolution layers compute from their configuration, with functions that Burn keeps
//! private.
//!
//! Pairs are (start, end) for each dimension. `Same` keeps `ceil(size / stride)` outputs; if the padding is odd, the
//! larger half goes to the end, as in ONNX's `SAME_UPPER`.

use burn::nn::{PaddingConfig1d, PaddingConfig2d};

/// The padding of a convolution over one dimension.
pub(super) fn padding_1d(
    padding: &PaddingConfig1d,
    length: usize,
    kernel: usize,
    stride: usize,
) -> [(usize, usize); 1] {
    [match padding {
        PaddingConfig1d::Valid => (0, 0),
        PaddingConfig1d::Same => same(length, kernel, stride),
        PaddingConfig1d::Explicit(left, right) => (*left, *right),
    }]
}

/// The padding of a convolution over height and width.
pub(super) fn padding_2d(
    padding: &PaddingConfig2d,
    size: [usize; 2],
    kernel: [usize; 2],
    stride: [usize; 2],
) -> [(usize, usize); 2] {
    match padding {
        PaddingConfig2d::Valid => [(0, 0); 2],
        PaddingConfig2d::Same => [0, 1].map(|d| same(size[d], kernel[d], stride[d])),
        PaddingConfig2d::Explicit(top, left, bottom, right) => [(*top, *bottom), (*left, *right)],
    }
}

fn same(size: usize, kernel: usize, stride: usize) -> (usize, usize) {
    let reach = (size.div_ceil(stride).max(1) - 1) * stride + kernel;
    let total = if size == 0 { 0 } else { reach.saturating_sub(size) };
    (total / 2, total - total / 2)
}
