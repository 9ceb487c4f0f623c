//! Where the values of a tile lie.
//!
//! Guarantees: storage that nothing has written yet is never referred to as numbers.

use std::mem::MaybeUninit;
use std::slice::{from_raw_parts, from_raw_parts_mut};

/// Where a tile's values lie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffer {
    pub(crate) at: *mut f32,
    /// From one row to the next, in elements.
    pub(crate) step: usize,
}

impl Buffer {
    /// # Safety
    /// The row exists and was written, and nothing writes it meanwhile.
    #[inline(always)]
    pub(super) unsafe fn row<'a>(self, row: usize, columns: usize) -> &'a [f32] {
        // SAFETY: the caller's promise.
        unsafe { from_raw_parts(self.at.add(row * self.step), columns) }
    }

    /// # Safety
    /// The row exists, and nothing else reads or writes it meanwhile.
    #[inline(always)]
    pub(super) unsafe fn row_mut<'a>(self, row: usize, columns: usize) -> &'a mut [MaybeUninit<f32>] {
        // SAFETY: the caller's promise.
        unsafe { from_raw_parts_mut(self.at.add(row * self.step).cast(), columns) }
    }
}
