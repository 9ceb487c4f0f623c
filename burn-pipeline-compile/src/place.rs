//! Tensors written part by part.

use crate::graph::Part;
use crate::multiply::Bf16;
use crate::product::multiply_into;
use crate::storage::Fresh;
use burn::backend::flex::{FlexTensor, Layout};
use burn::backend::ir::TensorIr;

/// Writes the parts of a tensor; inputs come in the order of parts, two for a product. Zeros are between them.
pub(crate) fn place(parts: &[Part], inputs: &[FlexTensor], output: &TensorIr, rounded: Option<Bf16>) -> FlexTensor {
    let elements = output.shape.num_elements();
    let written: usize = parts.iter().map(|part| part.layout.num_elements()).sum();
    // Parts do not overlap, so as many elements as there are means all of them.
    let mut fresh = if written == elements { Fresh::floats(elements) } else { Fresh::zeros(elements) };
    let to = fresh.as_floats();
    let mut inputs = inputs.iter();
    for part in parts {
        match (part.product, inputs.next()) {
            (true, Some(lhs)) => {
                if let Some(rhs) = inputs.next() {
                    // SAFETY: a part's layout is within the tensor, and parts do not overlap.
                    unsafe { multiply_into(lhs, rhs, &part.layout, to, rounded) };
                }
            }
            // SAFETY: as above.
            (false, Some(value)) => unsafe { copy(value, &part.layout, to) },
            (_, None) => {}
        }
    }
    // SAFETY: all parts were written, and zeros are between them.
    let mut given = unsafe { fresh.tensors(std::slice::from_ref(output)) };
    given.swap_remove(0).1
}

/// Copies a tensor to where a layout of the same shape says.
///
/// # Safety
/// `to` has all elements of the layout, and nothing else refers to them.
unsafe fn copy(value: &FlexTensor, layout: &Layout, to: *mut f32) {
    let from: &[f32] = value.storage();
    let shape = layout.shape();
    let Some((&columns, rows)) = shape.split_last() else { return };
    let last = rows.len();
    let (step, to_step) = (value.layout().strides()[last], layout.strides()[last]);
    for row in 0..rows.iter().product() {
        let (mut start, mut to_start) = (value.layout().start_offset() as isize, layout.start_offset() as isize);
        let mut left: usize = row;
        for (dim, &size) in rows.iter().enumerate().rev() {
            let index = (left % size) as isize;
            start += index * value.layout().strides()[dim];
            to_start += index * layout.strides()[dim];
            left /= size;
        }
        let begin = start.unsigned_abs();
        // SAFETY: the caller's promise.
        unsafe {
            let to = to.offset(to_start);
            match (step, to_step) {
                (1, 1) => std::ptr::copy_nonoverlapping(from[begin..begin + columns].as_ptr(), to, columns),
                _ => (0..columns as isize)
                    .for_each(|at| *to.offset(at * to_step) = from[(start + at * step).unsigned_abs()]),
            }
        }
    }
}
