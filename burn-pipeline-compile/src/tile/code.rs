//! Instructions of a tile, and where they read and write values.
//!
//! Guarantees: there is never a reference to uninitialised storage as numbers.

use crate::graph::{Map, Reduction};
use crate::half::Half;
use std::mem::MaybeUninit;
use std::slice::{from_raw_parts, from_raw_parts_mut};

/// One pass over a tile.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Instruction {
    pub(crate) work: Work,
    /// True if the result has a value for each element; false for one for each row.
    pub(crate) wide: bool,
    /// The buffer that it writes.
    pub(crate) to: usize,
    pub(crate) arguments: [Argument; 3],
    /// The type to which the result is rounded; it stays `f32` in its buffer.
    pub(crate) rounds: Option<Half>,
}

/// The work of an instruction.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Work {
    Map(Map),
    /// Reduces each row to one value.
    Reduce(Reduction),
}

/// An operand of an instruction.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Argument {
    /// No operand.
    None,
    Scalar(f32),
    /// A value for each row, in this buffer.
    Row(usize),
    /// A value for each element, in this buffer.
    Wide(usize),
}

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
