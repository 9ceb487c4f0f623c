//! Views: the same storage with another shape and other strides.
//!
//! Guarantees: nothing is copied, except for a reshape that no strides can describe.

use crate::graph::{Part, View, is_number};
use crate::place::{joined, place};
use burn::backend::flex::{FlexTensor, Layout};
use burn::backend::ir::TensorIr;
use burn::tensor::Shape;

/// A view of a tensor.
pub(crate) fn view(tensor: FlexTensor, view: &View, output: &TensorIr) -> FlexTensor {
    match laid(tensor.layout(), view, &output.shape) {
        Some(layout) => tensor.with_layout(layout),
        None if is_number(output) => {
            let layout = Layout::contiguous(tensor.layout().shape().clone());
            let range = layout.shape().iter().map(|&size| (0, size)).collect();
            // SAFETY: the part is the whole tensor, in its order.
            unsafe { place(&[Part { range, layout, matmul: false }], &[tensor], output, None) }
        }
        None => tensor.reshape(output.shape.clone()),
    }
}

/// The layout of a view; `None` if no strides can describe it.
pub(crate) fn laid(layout: &Layout, view: &View, shape: &Shape) -> Option<Layout> {
    Some(match view {
        View::Reshape => return reshaped(layout, shape),
        View::Permute(dims) => layout.permute(dims),
        View::Expand => expanded(layout, shape.clone()),
        View::Slice(ranges) => ranges.iter().enumerate().fold(layout.clone(), |layout, (dim, range)| {
            let size = layout.shape()[dim].cast_signed();
            let start = if range.start < 0 { range.start + size } else { range.start };
            layout.narrow(dim, start.clamp(0, size).unsigned_abs(), shape[dim])
        }),
    })
}

fn expanded(layout: &Layout, shape: Shape) -> Layout {
    let before = layout.shape();
    let more = shape.num_dims() - before.num_dims();
    let stride = |(dim, &size): (usize, &usize)| match dim.checked_sub(more) {
        Some(old) if before[old] == size => layout.strides()[old],
        _ => 0,
    };
    let strides = shape.iter().enumerate().map(stride).collect();
    Layout::new(shape, strides, layout.start_offset())
}

/// The layout of the same elements in the same order with another shape, if strides can describe it.
///
/// Dimensions that are contiguous in storage are joined, and each such run is split into dimensions of the new shape.
pub(crate) fn reshaped(layout: &Layout, shape: &Shape) -> Option<Layout> {
    if shape.num_elements() == 0 {
        return Some(Layout::contiguous(shape.clone()));
    }
    let mut runs = joined(layout.shape().iter().zip(layout.strides()).map(|(&size, &stride)| (size, [stride])));
    let mut strides = vec![0; shape.num_dims()];
    let (mut left, mut stride) = runs.pop().map_or((1, 1), |(size, [stride])| (size, stride));
    // From the last dimension on, each takes its part of the run.
    for dim in (0..shape.num_dims()).rev() {
        let size = shape[dim];
        if size != 1 && left == 1 {
            (left, [stride]) = runs.pop()?;
        }
        if !left.is_multiple_of(size) {
            return None;
        }
        strides[dim] = stride;
        (left, stride) = (left / size, stride * size.cast_signed());
    }
    Some(Layout::new(shape.clone(), strides, layout.start_offset()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strides(shape: &[usize], strides: &[isize], to: &[usize]) -> Option<Vec<isize>> {
        let layout = Layout::new(Shape::from(shape.to_vec()), strides.to_vec(), 3);
        reshaped(&layout, &Shape::from(to.to_vec())).map(|layout| layout.strides().to_vec())
    }

    #[test]
    fn a_slice_of_columns_is_cut_into_heads_without_a_copy() {
        assert_eq!(strides(&[2, 5, 8], &[120, 24, 1], &[2, 5, 4, 2]), Some(vec![120, 24, 2, 1]));
        assert_eq!(strides(&[2, 5, 8], &[120, 24, 1], &[10, 8]), Some(vec![24, 1]));
    }

    #[test]
    fn what_strides_cannot_describe_is_refused() {
        assert_eq!(strides(&[2, 5, 8], &[120, 24, 1], &[2, 40]), None);
        assert_eq!(strides(&[3, 4], &[1, 3], &[12]), None);
    }

    #[test]
    fn dimensions_of_one_element_do_not_matter() {
        assert_eq!(strides(&[1, 4, 1], &[9, 2, 7], &[4]), Some(vec![2]));
        assert_eq!(strides(&[1, 1], &[1, 1], &[1, 1, 1]).map(|strides| strides.len()), Some(3));
    }
}
