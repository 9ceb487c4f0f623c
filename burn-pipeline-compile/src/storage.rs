//! Storage that is written before it is read, and so needs no zeros.

use crate::tile::add;
use burn::backend::flex::{FlexTensor, Layout};
use burn::backend::ir::{TensorId, TensorIr};
use burn::tensor::Bytes;

/// Storage for one or more tensors.
#[derive(Debug)]
pub(crate) struct Fresh {
    elements: Elements,
    length: usize,
}

#[derive(Debug)]
enum Elements {
    Floats(Vec<f32>),
    Bytes(Vec<u8>),
}

impl Fresh {
    /// Of this many `f32`, to be written.
    pub(crate) fn floats(length: usize) -> Self {
        Self { elements: Elements::Floats(Vec::with_capacity(length)), length }
    }

    /// Of this many bytes, to be written.
    pub(crate) fn bytes(length: usize) -> Self {
        Self { elements: Elements::Bytes(Vec::with_capacity(length)), length }
    }

    /// Of this many zeros.
    pub(crate) fn zeros(length: usize) -> Self {
        Self { elements: Elements::Floats(vec![0.0; length]), length }
    }

    pub(crate) fn as_floats(&mut self) -> *mut f32 {
        match &mut self.elements {
            Elements::Floats(values) => values.as_mut_ptr(),
            Elements::Bytes(_) => std::ptr::null_mut(),
        }
    }

    pub(crate) fn as_bytes(&mut self) -> *mut u8 {
        match &mut self.elements {
            Elements::Bytes(values) => values.as_mut_ptr(),
            Elements::Floats(_) => std::ptr::null_mut(),
        }
    }

    /// Adds pieces of this length, of which zeros were asked for, in order.
    pub(crate) fn fold(&mut self, length: usize, pieces: usize) {
        let Elements::Floats(values) = &mut self.elements else { return };
        if pieces > 1 && length > 0 {
            let (first, rest) = values.split_at_mut(length);
            rest.chunks(length).for_each(|piece| add(first, piece));
            *values = first.to_vec();
        }
        self.length = length;
    }

    /// # Safety
    /// All of it has been written.
    unsafe fn written(self) -> Bytes {
        match self.elements {
            Elements::Floats(mut values) => {
                // SAFETY: the length is within the capacity, and all was written.
                unsafe { values.set_len(self.length) };
                Bytes::from_elems(values)
            }
            Elements::Bytes(mut values) => {
                // SAFETY: as above.
                unsafe { values.set_len(self.length) };
                Bytes::from_elems(values)
            }
        }
    }

    /// The tensors that it holds, all in order.
    ///
    /// # Safety
    /// All of it has been written.
    pub(crate) unsafe fn tensors(self, tensors: &[TensorIr]) -> Vec<(TensorId, FlexTensor)> {
        let Some(first) = tensors.first() else { return Vec::new() };
        // SAFETY: the caller's promise.
        let bytes = unsafe { self.written() };
        let whole = FlexTensor::new(bytes, Layout::contiguous(first.shape.clone()), first.dtype);
        let view = |tensor: &TensorIr| {
            let layout = Layout::contiguous(tensor.shape.clone());
            (tensor.id, FlexTensor::from_arc(whole.data_arc(), layout, tensor.dtype))
        };
        tensors.iter().map(view).collect()
    }
}
