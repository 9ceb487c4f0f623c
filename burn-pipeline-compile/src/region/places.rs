//! Positions of a tensor's rows in its storage, also if the tensor is broadcast or not contiguous.

use super::Input;
use crate::place::joined;
use burn::backend::flex::Layout;

/// The positions of a tensor's rows, and of the elements of a row.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Places {
    start: isize,
    /// Sizes and strides of the dimensions over which rows are counted, the last one fastest; joined where possible.
    dims: Vec<(usize, [isize; 1])>,
    /// The distance from one element of a row to the next.
    pub(super) inner: isize,
}

impl Places {
    /// The positions of an input that is broadcast to the region's rows.
    pub(super) fn of(input: &Input, layout: &Layout) -> Self {
        let (sizes, strides) = (layout.shape(), layout.strides());
        let last = sizes.num_dims() - 1;
        let stride = |dim: usize| if sizes[dim] == 1 { 0 } else { strides[dim] };
        let dims = joined(input.over.iter().enumerate().map(|(dim, &size)| (size, [stride(dim)])));
        Self { start: layout.start_offset() as isize, dims, inner: strides[last] }
    }

    /// The offset of a row's first element.
    pub(super) fn row(&self, row: usize) -> isize {
        let (mut place, mut left) = (self.start, row);
        for &(size, [stride]) in self.dims.iter().rev() {
            place += (left % size) as isize * stride;
            left /= size;
        }
        place
    }

    /// The distance from one row to the next, within a run.
    pub(super) fn step(&self) -> isize {
        self.dims.last().map_or(0, |(_, [stride])| *stride)
    }

    /// The number of rows after which the step changes; `None` if it never does.
    pub(super) fn run(&self) -> Option<usize> {
        if self.dims.len() > 1 { self.dims.last().map(|(size, _)| *size) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::backend::ir::{TensorId, TensorIr};
    use burn::tensor::{DType, Shape};

    fn places(over: &[usize], shape: &[usize], strides: &[isize]) -> Places {
        let shape = Shape::from(shape.to_vec());
        let tensor = TensorIr::uninit(TensorId::new(0), shape.clone(), DType::F32);
        let input = Input { tensor, over: over.to_vec(), wide: true };
        Places::of(&input, &Layout::new(shape, strides.to_vec(), 7))
    }

    #[test]
    fn rows_in_order_are_one_dimension() {
        let places = places(&[2, 3], &[2, 3, 5], &[15, 5, 1]);
        assert_eq!((places.row(4), places.step(), places.run()), (7 + 20, 5, None));
    }

    #[test]
    fn a_mask_that_is_the_same_for_all_heads_starts_again_with_each() {
        let places = places(&[2, 3, 4], &[1, 1, 4, 4], &[16, 16, 4, 1]);
        assert_eq!((places.row(5), places.step(), places.run()), (7 + 4, 4, Some(4)));
    }

    #[test]
    fn what_is_the_same_in_all_rows_has_no_step() {
        let places = places(&[2, 3], &[1, 1, 5], &[5, 5, 1]);
        assert_eq!((places.row(5), places.step(), places.run()), (7, 0, None));
    }
}
