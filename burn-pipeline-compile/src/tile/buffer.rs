//! Where the values of a tile are stored.
//!
//! Guarantees: there is never a reference to uninitialised storage as numbers.

use std::mem::MaybeUninit;
use std::slice::{from_raw_parts, from_raw_parts_mut};

/// The location of a tile's values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffer {
    pub(crate) at: *mut f32,
    /// The distance from one row to the next, in elements.
    pub(crate) step: usize,
}

impl Buffer {
    /// # Safety
    /// The row exists and was written, and nothing writes it meanwhile.
    #[inline(always)]
    pub(super) unsafe fn row<'a>(self, row: usize, columns: usize) -> &'a [f32] {
        // SAFETY: guaranteed by the caller.
        unsafe { from_raw_parts(self.at.add(row * self.step), columns) }
    }

    /// # Safety
    /// The row exists, and nothing else reads or writes it meanwhile.
    #[inline(always)]
    pub(super) unsafe fn row_mut<'a>(self, row: usize, columns: usize) -> &'a mut [MaybeUninit<f32>] {
        // SAFETY: guaranteed by the caller.
        unsafe { from_raw_parts_mut(self.at.add(row * self.step).cast(), columns) }
    }
}
