//! The elements of an image that a convolution's windows read, as a matrix.
//!
//! Guarantees: an element of a window outside the image is 0, and adds nothing back.

use crate::convolution::Window;
use std::cell::Cell;
use std::ops::Range;

thread_local! {
    /// The last block of windows: half a MiB for each thread, or one row of windows, kept until the thread ends.
    static KEPT: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// Calls `call` with a buffer of this many elements, of unspecified contents.
pub(super) fn with_windows(elements: usize, call: impl FnOnce(&mut [f32])) {
    // `call` may call this function again on this thread; the inner call then allocates its own buffer.
    let mut windows = KEPT.take();
    if windows.len() < elements {
        windows.resize(elements, 0.0);
    }
    call(&mut windows[..elements]);
    KEPT.set(windows);
}

impl Window {
    /// Writes the windows of these rows of the output: element by element of the window, for all channels one after
    /// the other.
    pub(super) fn read(
        &self,
        image: &[f32],
        sizes: [usize; 2],
        rows: Range<usize>,
        columns: usize,
        windows: &mut [f32],
    ) {
        self.lines(sizes, &rows, columns, image.len(), |line| {
            let to = &mut windows[line.windows..][..columns];
            let Some(first) = line.image else { return to.fill(0.0) };
            let (before, rest) = to.split_at_mut(line.columns.start);
            let (to, after) = rest.split_at_mut(line.columns.len());
            before.fill(0.0);
            after.fill(0.0);
            match self.stride[1] {
                1 => to.copy_from_slice(&image[first..][..to.len()]),
                stride => to.iter_mut().zip(image[first..].iter().step_by(stride)).for_each(|(to, from)| *to = *from),
            }
        });
    }

    /// Adds each element of the windows to the image element that it was read from.
    pub(super) fn add_back(
        &self,
        windows: &[f32],
        sizes: [usize; 2],
        rows: Range<usize>,
        columns: usize,
        image: &mut [f32],
    ) {
        self.lines(sizes, &rows, columns, image.len(), |line| {
            let Some(first) = line.image else { return };
            let from = &windows[line.windows..][line.columns];
            match self.stride[1] {
                1 => image[first..].iter_mut().zip(from).for_each(|(to, from)| *to += *from),
                stride => image[first..].iter_mut().step_by(stride).zip(from).for_each(|(to, from)| *to += *from),
            }
        });
    }

    /// Calls `call` for each element of a window and each row of the output. Images have `elements` elements over all
    /// channels.
    fn lines(
        &self,
        [height, width]: [usize; 2],
        rows: &Range<usize>,
        columns: usize,
        elements: usize,
        mut call: impl FnMut(Line),
    ) {
        let channels = elements.checked_div(height * width).unwrap_or(0);
        let mut windows = 0;
        for channel in 0..channels {
            for down in 0..self.size[0] {
                for right in 0..self.size[1] {
                    let inside = self.inside(1, right, width, columns);
                    for row in rows.clone() {
                        let at = (row * self.stride[0] + down * self.dilation[0]).checked_sub(self.before[0]);
                        let at = at.filter(|at| *at < height && !inside.is_empty());
                        let left = inside.start * self.stride[1] + right * self.dilation[1];
                        let image = at.map(|at| (channel * height + at) * width + left - self.before[1]);
                        call(Line { windows, image, columns: inside.clone() });
                        windows += columns;
                    }
                }
            }
        }
    }

    /// The output positions along an axis at which this element of a window is within the image.
    fn inside(&self, axis: usize, element: usize, size: usize, places: usize) -> Range<usize> {
        let (shift, before, stride) = (element * self.dilation[axis], self.before[axis], self.stride[axis]);
        let first = before.saturating_sub(shift).div_ceil(stride).min(places);
        let end = (size + before).saturating_sub(shift).div_ceil(stride).min(places);
        first..end.max(first)
    }
}

/// One element of the windows of a row of the output.
struct Line {
    /// The offset of its first value in the windows.
    windows: usize,
    /// The offset in the image of the first value within the image; `None` if there is none.
    image: Option<usize>,
    /// The windows whose value is within the image.
    columns: Range<usize>,
}
