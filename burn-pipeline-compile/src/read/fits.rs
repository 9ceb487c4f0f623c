//! Finds operations whose shapes do not fit together. They are left to the interpreter, which refuses them.
//!
//! Guarantees: steps, which read and write by shapes alone, are made of operations that fit.

use crate::graph::View;
use burn::backend::ir::TensorIr;

/// Returns true if a tensor can be broadcast to another one with as many dimensions.
pub(super) fn broadcasts(tensor: &TensorIr, to: &TensorIr) -> bool {
    tensor.shape.num_dims() == to.shape.num_dims() && expands(&tensor.shape, &to.shape)
}

/// Returns true if sizes, counted from the last one on, are those of a shape or 1.
fn expands(sizes: &[usize], to: &[usize]) -> bool {
    sizes.len() <= to.len() && sizes.iter().rev().zip(to.iter().rev()).all(|(size, to)| size == to || *size == 1)
}

/// Returns true if a batch of matrices has the shape of the matmul of two others.
pub(super) fn multiplies(lhs: &TensorIr, rhs: &TensorIr, out: &TensorIr) -> bool {
    let parts = [lhs, rhs, out].map(|tensor| tensor.shape.split_last_chunk::<2>());
    let [Some((left, [rows, depth])), Some((right, [deep, columns])), Some((all, sizes))] = parts else { return false };
    depth == deep && [*rows, *columns] == *sizes && expands(left, all) && expands(right, all)
}

/// Returns true if the concatenation of tensors along a dimension has the shape of another one.
pub(super) fn stand_beside(tensors: &[TensorIr], dim: usize, out: &TensorIr) -> bool {
    let size = |tensor: &TensorIr| tensor.shape.get(dim).copied();
    let others = |tensor: &TensorIr| {
        let mut shape = tensor.shape.to_vec();
        (dim < shape.len()).then(|| shape.remove(dim));
        shape
    };
    let total: Option<usize> = tensors.iter().map(size).sum();
    total.is_some() && total == size(out) && tensors.iter().all(|tensor| others(tensor) == others(out))
}

/// Returns true if a tensor has the shape of another one with these dimensions reduced to one element.
pub(super) fn reduces(input: &TensorIr, dims: &[usize], out: &TensorIr) -> bool {
    let size = |(dim, &size): (usize, &usize)| if dims.contains(&dim) { 1 } else { size };
    dims.iter().all(|&dim| dim < input.shape.num_dims())
        && input.shape.iter().enumerate().map(size).eq(out.shape.iter().copied())
}

/// Returns true if a tensor has the largest or smallest elements of another one along its last dimension. Without
/// elements there are none, and the interpreter refuses.
pub(super) fn has_extremes(input: &TensorIr, dim: usize, out: &TensorIr) -> bool {
    dim + 1 == input.shape.num_dims() && input.shape[dim] > 0 && out.shape.last() == Some(&1)
}

/// Returns true if a view stays within its input.
pub(super) fn views(view: &View, input: &TensorIr, out: &TensorIr) -> bool {
    let (sizes, wanted) = (&input.shape, &out.shape);
    match view {
        View::Reshape => sizes.num_elements() == wanted.num_elements(),
        View::Permute(dims) => {
            let moved = || dims.iter().map(|&dim| sizes.get(dim));
            dims.len() == sizes.num_dims() && moved().eq(wanted.iter().map(Some))
        }
        View::Expand => expands(sizes, wanted),
        View::Slice(ranges) => {
            let all = || ranges.iter().zip(sizes.iter().zip(wanted.iter()));
            let inside = all().all(|(range, (&size, &wanted))| {
                let start = if range.start < 0 { range.start + size.cast_signed() } else { range.start };
                start.clamp(0, size.cast_signed()).unsigned_abs() + wanted <= size
            });
            let rest = sizes.iter().zip(wanted.iter()).skip(ranges.len()).all(|(size, wanted)| size == wanted);
            inside && rest && ranges.len() <= sizes.num_dims() && sizes.num_dims() == wanted.num_dims()
        }
    }
}
