//! Instructions of a tile.

use crate::graph::{Map, Reduction};

/// One pass over a tile.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Instruction {
    pub(crate) work: Work,
    /// Does it give a value for each element? Else one for each row.
    pub(crate) wide: bool,
    /// The buffer that it writes.
    pub(crate) to: usize,
    pub(crate) arguments: [Argument; 3],
}

/// What an instruction does.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Work {
    Map(Map),
    /// Each row becomes one value.
    Reduce(Reduction),
}

/// What an instruction reads.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Argument {
    /// Nothing.
    None,
    Scalar(f32),
    /// A value for each row, in this buffer.
    Row(usize),
    /// A value for each element, in this buffer.
    Wide(usize),
}
