//! Cuts a convolution into pieces of work.
//!
//! Guarantees: the cut depends on sizes alone, not on the number of threads.

use crate::convolution::{Convolution, Window};
use std::ops::Range;

/// The elements of a block of windows, unless one row of the output has more: half a MiB.
const BLOCK: usize = 128 * 1024;
/// The columns of the weight's gradient that are computed together, in whole channels, at least one.
const GRADIENT_COLUMNS: usize = 256;

impl Convolution {
    /// Returns true if each element's only window is the element itself.
    pub(super) fn is_pointwise(&self) -> bool {
        let Window { size, stride, before, .. } = self.window;
        (size, stride, before) == ([1, 1], [1, 1], [0, 0]) && self.input[2..] == self.output[2..]
    }

    /// The number of elements of one channel of an image, and of one channel of the output.
    pub(super) fn areas(&self) -> (usize, usize) {
        (self.input[2] * self.input[3], self.output[2] * self.output[3])
    }

    /// Blocks of rows of the output, with as many rows as their windows over `depth` elements fit into a block.
    pub(super) fn blocks(&self, depth: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let [_, _, rows, columns] = self.output;
        let each = (BLOCK / (depth * columns).max(1)).max(1);
        (0..rows).step_by(each).map(move |first| first..(first + each).min(rows))
    }

    /// The blocks of all samples, in order.
    pub(super) fn blocks_of_samples(&self, depth: usize) -> impl Iterator<Item = (usize, Range<usize>)> {
        (0..self.output[0]).flat_map(move |sample| self.blocks(depth).map(move |rows| (sample, rows)))
    }

    pub(super) fn blocks_of_channels(&self) -> Vec<Range<usize>> {
        let channels = self.input[1];
        let each = (GRADIENT_COLUMNS / self.window.elements().max(1)).max(1);
        (0..channels).step_by(each).map(|first| first..(first + each).min(channels)).collect()
    }
}
