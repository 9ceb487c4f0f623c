//! What a two-dimensional convolution computes. [`convolve`](crate::convolve) runs it.

use std::fmt::{Display, Formatter};

/// The result to compute.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wanted {
    /// The output, from the input and the weight.
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
    pub(crate) input: [usize; 4],
    pub(crate) output: [usize; 4],
    pub(crate) window: Window,
}

/// The geometry of windows in an image. Each pair is for the row index, then for the column index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Window {
    pub(crate) size: [usize; 2],
    pub(crate) stride: [usize; 2],
    pub(crate) dilation: [usize; 2],
    /// Zeros (padding) before the image.
    pub(crate) before: [usize; 2],
}

impl Window {
    pub(crate) fn elements(&self) -> usize {
        self.size.iter().product()
    }
}

impl Convolution {
    /// The number of elements of a window over all channels.
    pub(crate) fn depth(&self) -> usize {
        self.input[1] * self.window.elements()
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
