//! Compares tensors from outside with the program.
//!
//! Guarantees: compiled steps read tensors by the program's shapes without further checks, so no tensor that differs
//! reaches them: not from the caller, not from an interpreted operation, and not one whose layout reaches beyond its
//! storage.

use crate::graph::{is_mask, text};
use burn::backend::flex::{FlexTensor, Layout};
use burn::backend::ir::TensorIr;
use std::error::Error;
use std::fmt::{Debug, Display, Formatter, Result};

/// A tensor that differs from the one that the program was compiled for.
#[derive(Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// The tensor's name in the program's text.
    pub tensor: String,
    /// The interpreted operation that made it; `None` if it came from the caller.
    pub operation: Option<String>,
    /// The shape and type that the program was compiled for.
    pub expected: String,
    /// The shape and type of the tensor.
    pub got: String,
}

impl Mismatch {
    /// Compares a tensor with the program's.
    pub(crate) fn check(tensor: &TensorIr, given: &FlexTensor) -> std::result::Result<(), Self> {
        let (layout, dtype) = (given.layout(), given.dtype());
        let alike = dtype == tensor.dtype || is_mask(tensor) && dtype.is_bool() && dtype.size() == 1;
        if alike && *layout.shape() == tensor.shape && lies_within(layout, given.bytes().len() / dtype.size().max(1)) {
            return Ok(());
        }
        let (tensor, expected) = (text(tensor), format!("{:?} of {:?}", tensor.shape.to_vec(), tensor.dtype));
        let mut got = format!("{:?} of {dtype:?}", layout.shape().to_vec());
        if got == expected {
            got += ", which reaches beyond its storage";
        }
        Err(Self { tensor, operation: None, expected, got })
    }
}

/// Returns true if all indices of a layout are below `elements`.
pub(crate) fn lies_within(layout: &Layout, elements: usize) -> bool {
    let (mut first, mut last) = (layout.start_offset() as i128, layout.start_offset() as i128);
    for (&size, &stride) in layout.shape().iter().zip(layout.strides()) {
        let Some(steps) = size.checked_sub(1) else { return true };
        let reach = steps as i128 * stride as i128;
        *(if reach < 0 { &mut first } else { &mut last }) += reach;
    }
    first >= 0 && last < elements as i128
}

impl Display for Mismatch {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Self { tensor, operation, expected, got } = self;
        match operation {
            Some(operation) => write!(f, "operation `{operation}` gave {got} as {tensor}, ")?,
            None => write!(f, "tensor {tensor} is {got}, ")?,
        }
        write!(f, "but the program was compiled for {expected}")
    }
}

/// The text of `Display`, which a `main` that returns an error prints.
impl Debug for Mismatch {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        Display::fmt(self, f)
    }
}

impl Error for Mismatch {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_layout_lies_within_where_all_its_places_do(
            dims in prop::collection::vec((0_usize..4, -5_isize..6), 0..4),
            start in 0_usize..20,
            elements in 0_usize..40,
        ) {
            let (sizes, strides): (Vec<usize>, Vec<isize>) = dims.iter().copied().unzip();
            let layout = Layout::new(sizes.clone().into(), strides, start);
            let count: usize = sizes.iter().product();
            let place = |element: usize| {
                let index = |dim: usize| element / sizes[dim + 1..].iter().product::<usize>() % sizes[dim];
                (0..dims.len()).map(|dim| index(dim) as isize * dims[dim].1).sum::<isize>() + start as isize
            };
            let all = (0..count).map(place).all(|place| (0..elements as isize).contains(&place));
            prop_assert_eq!(lies_within(&layout, elements), all);
        }
    }
}
