//! Storage for tensors. It is written before it is read, so it is cleared only where zeros are needed.
//!
//! Its memory comes from a [`pool`], and returns there when the last tensor in it is dropped.

mod pool;

use crate::graph::bytes;
use crate::half::Half;
use crate::tile::add;
use burn::backend::flex::{FlexTensor, Layout};
use burn::backend::ir::TensorIr;
use burn::tensor::Bytes;
use pool::Block;
use std::slice::from_raw_parts_mut;

/// Storage for one or more tensors.
#[derive(Debug)]
pub(crate) struct Fresh {
    block: Block,
    bytes: usize,
}

/// A pointer into storage that threads share; each writes its own elements.
#[derive(Clone, Copy)]
pub(crate) struct Shared<T>(pub(crate) *mut T);

// SAFETY: each thread writes its own elements.
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Shared<T> {}

impl<T> Shared<T> {
    /// # Safety
    /// The offset is within the storage.
    pub(crate) unsafe fn at(self, place: usize) -> *mut T {
        // SAFETY: guaranteed by the caller.
        unsafe { self.0.add(place) }
    }
}

const FLOAT: usize = size_of::<f32>();

impl Fresh {
    /// Storage for this many `f32`, to be written.
    pub(crate) fn floats(length: usize) -> Self {
        Self::bytes(length.checked_mul(FLOAT).expect("no tensor is larger than the address space"))
    }

    /// Storage for a tensor, to be written.
    pub(crate) fn of(tensor: &TensorIr) -> Self {
        let bytes = tensor.shape.num_elements().checked_mul(tensor.dtype.size());
        Self::bytes(bytes.expect("no tensor is larger than the address space"))
    }

    /// Storage for this many bytes, to be written.
    pub(crate) fn bytes(bytes: usize) -> Self {
        Self { block: Block::new(bytes), bytes }
    }

    /// The storage with all bytes 0.
    pub(crate) fn zeroed(self) -> Self {
        // SAFETY: the block has room for these bytes.
        unsafe { self.block.as_ptr().write_bytes(0, self.bytes) };
        self
    }

    pub(crate) fn as_floats(&mut self) -> *mut f32 {
        self.block.as_ptr().cast()
    }

    pub(crate) fn as_bytes(&mut self) -> *mut u8 {
        self.block.as_ptr()
    }

    /// The sum of `pieces` arrays of this length, in their order; rounded if it is half precision.
    ///
    /// # Safety
    /// The storage has this many floats, all of them zeros from the start ([`zeroed`](Self::zeroed)) or written.
    pub(crate) unsafe fn sum(self, length: usize, pieces: usize, half: Option<Half>) -> Self {
        if half.is_none() && pieces < 2 || length == 0 {
            return self;
        }
        // SAFETY: guaranteed by the caller.
        let values = unsafe { from_raw_parts_mut(self.block.as_ptr().cast::<f32>(), length * pieces) };
        let (first, rest) = values.split_at_mut(length);
        rest.chunks(length).for_each(|piece| add(first, piece));
        if let Some(half) = half {
            let sum = Self::bytes(length * size_of::<u16>());
            // SAFETY: there is room for as many, whose contents do not matter.
            half.narrow(first, unsafe { from_raw_parts_mut(sum.block.as_ptr().cast(), length) });
            return sum;
        }
        let mut sum = Self::floats(length);
        // SAFETY: there is room for as many.
        unsafe { sum.as_floats().copy_from_nonoverlapping(first.as_ptr(), length) };
        sum
    }

    /// The only tensor in the storage, contiguous.
    ///
    /// # Safety
    /// All of the storage has been written.
    ///
    /// # Panics
    /// Panics if the tensor has more bytes.
    pub(crate) unsafe fn tensor(self, tensor: &TensorIr) -> FlexTensor {
        // SAFETY: guaranteed by the caller.
        let mut tensors = unsafe { self.tensors(std::slice::from_ref(tensor)) };
        tensors.swap_remove(0)
    }

    /// The tensors in the storage, in this order, all contiguous.
    ///
    /// # Safety
    /// All of the storage has been written.
    ///
    /// # Panics
    /// Panics if a tensor has more bytes.
    pub(crate) unsafe fn tensors(self, tensors: &[TensorIr]) -> Vec<FlexTensor> {
        let Some(first) = tensors.first() else { return Vec::new() };
        // SAFETY: guaranteed by the caller.
        let memory = unsafe { Bytes::from_controller(Box::new(self.block), self.bytes) };
        let whole = FlexTensor::new(memory, Layout::contiguous(first.shape.clone()), first.dtype);
        let view = |tensor: &TensorIr| {
            assert!(bytes(tensor) <= self.bytes, "a tensor lies within its storage");
            let layout = Layout::contiguous(tensor.shape.clone());
            FlexTensor::from_arc(whole.data_arc(), layout, tensor.dtype)
        };
        tensors.iter().map(view).collect()
    }
}
