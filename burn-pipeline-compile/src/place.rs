//! Writes tensors part by part: copies, and matmuls computed in place.
//!
//! Guarantees: each element of a part is written once; elements that no part covers are zero.
//!
//! 1. If the parts have as many elements as the tensor, they cover it, and its storage is not cleared first.
//! 2. A matmul is computed into its part. Other values are copied, over dimensions that are joined where both sides are
//!    contiguous.

use crate::graph::Part;
use crate::half::Half;
use crate::matmul::multiply_into;
use crate::multiply::{Bf16, To};
use crate::storage::Fresh;
use burn::backend::flex::{FlexTensor, Layout};
use burn::backend::ir::TensorIr;

/// Writes the parts of a tensor, with zeros between them. Inputs come in the order of parts, two for a matmul.
///
/// # Safety
/// Parts are within the tensor and do not overlap; each input, or the matmul of two, has its part's shape. Inputs
/// that are copied have the tensor's type.
pub(crate) unsafe fn place(
    parts: &[Part],
    inputs: &[FlexTensor],
    output: &TensorIr,
    rounded: Option<Bf16>,
) -> FlexTensor {
    let elements = output.shape.num_elements();
    let written: usize = parts.iter().map(|part| part.layout.num_elements()).sum();
    // Parts do not overlap, so if they have as many elements as the tensor, they cover it.
    let mut fresh = if written == elements { Fresh::of(output) } else { Fresh::of(output).zeroed() };
    let (at, half) = (fresh.as_bytes(), Half::of(output));
    let mut inputs = inputs.iter();
    for part in parts {
        match (part.matmul, inputs.next()) {
            (true, Some(lhs)) => {
                if let Some(rhs) = inputs.next() {
                    // SAFETY: guaranteed by the caller.
                    unsafe { multiply_into(lhs, rhs, &part.layout, To::new(at, half), rounded) };
                }
            }
            // SAFETY: as above.
            (false, Some(value)) => unsafe {
                match half {
                    Some(half) => copy(value.layout(), half.elements(value), &part.layout, at.cast()),
                    None => copy(value.layout(), value.storage::<f32>(), &part.layout, at.cast()),
                }
            },
            (_, None) => {}
        }
    }
    // SAFETY: all parts were written, and zeros are between them.
    unsafe { fresh.tensor(output) }
}

/// Copies elements with their own layout into a layout of the same shape.
///
/// # Safety
/// The shapes are equal; `to` has all elements of the layout, and nothing else refers to them.
unsafe fn copy<T: Copy>(own: &Layout, from: &[T], layout: &Layout, to: *mut T) {
    let strides = own.strides().iter().zip(layout.strides());
    let axes = joined(layout.shape().iter().zip(strides).map(|(&size, (&from, &to))| (size, [from, to])));
    if axes.iter().all(|(size, _)| *size > 0) {
        // SAFETY: a tensor's layout is within its storage, and the caller guarantees the other one.
        unsafe { copy_axes(&axes, from.as_ptr().add(own.start_offset()), to.add(layout.start_offset())) };
    }
}

/// Joins dimensions that are contiguous: sizes, each with its strides in `N` layouts. Sizes of 1 are left out.
pub(crate) fn joined<const N: usize>(dims: impl Iterator<Item = (usize, [isize; N])>) -> Vec<(usize, [isize; N])> {
    let mut joined: Vec<(usize, [isize; N])> = Vec::new();
    for (size, strides) in dims.filter(|(size, _)| *size != 1) {
        match joined.last_mut() {
            Some((outer, apart)) if *apart == strides.map(|stride| stride * size.cast_signed()) => {
                (*outer, *apart) = (*outer * size, strides);
            }
            _ => joined.push((size, strides)),
        }
    }
    joined
}

/// # Safety
/// All indices of the axes are elements on both sides, and nothing else refers to the written ones.
unsafe fn copy_axes<T: Copy>(axes: &[(usize, [isize; 2])], from: *const T, to: *mut T) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        match axes {
            [] => *to = *from,
            [(size, [1, 1])] => to.copy_from_nonoverlapping(from, *size),
            [(size, [from_next, to_next]), rest @ ..] => {
                for place in 0..size.cast_signed() {
                    copy_axes(rest, from.offset(place * from_next), to.offset(place * to_next));
                }
            }
        }
    }
}
