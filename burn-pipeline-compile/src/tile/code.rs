//! Instructions of a tile.

use crate::graph::{Map, Reduction};
use crate::half::Half;

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
