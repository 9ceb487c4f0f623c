//! Regions: nodes that run together, tile by tile, so that what only they read never leaves the cache.
//!
//! Guarantees: what a region gives depends on the values that it is given, not on where these lie, nor on the number of
//! threads: rows are added to sums in their order within pieces that depend on sizes alone, and pieces in theirs.
//!
//! 1. Nodes are lowered to instructions over buffers ([`lower`]). Values that are equal along a row are computed once a row.
//!    A tensor that is read outside is written to its own storage, and read from there by the region itself.
//! 2. Buffers that live within a tile only are shared by values that do not live at the same time ([`slots`]).
//! 3. A run finds where the rows of its inputs lie ([`places`]), reads them in place if their elements follow each other, and
//!    copies them into the tile otherwise ([`source`], [`run`]). Sums over rows add each where [`sums`] says.
//! 4. A region that alone reads a batch of products runs behind each matrix of it, while that is in the cache ([`blocks`]).
//! 5. How many bytes outputs take while it runs, and after it, is known before ([`memory`]).

mod blocks;
mod held;
mod lower;
mod memory;
mod places;
mod run;
mod slots;
mod source;
mod sums;

use crate::graph::text;
use crate::multiply::Bf16;
use crate::tile::{Argument, Instruction};
use burn::backend::ir::TensorIr;
use std::fmt::{Display, Formatter, Result};

pub(crate) use lower::lower;

/// Nodes lowered to instructions. Buffers are numbered: inputs, outputs, slots of tiles, slots of rows.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Region {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) inputs: Vec<Input>,
    pub(crate) outputs: Vec<Output>,
    pub(crate) code: Vec<Instruction>,
    /// Buffers of a value for each element of a tile.
    pub(crate) wide_slots: usize,
    /// Buffers of a value for each row of a tile.
    pub(crate) row_slots: usize,
    /// Are rows reduced, so that a tile has whole ones?
    pub(crate) whole_rows: bool,
    /// The number of nodes.
    pub(crate) nodes: usize,
}

/// A tensor that a region reads.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Input {
    pub(crate) tensor: TensorIr,
    /// The dimensions, but the last, of the tensor that it is broadcast to.
    pub(crate) over: Vec<usize>,
    /// Has it a value for each element? Else one for each row.
    pub(crate) wide: bool,
}

/// Tensors that a region gives; several share their storage.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Output {
    pub(crate) tensors: Vec<TensorIr>,
    pub(crate) kind: Kind,
}

/// How an output is made.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Kind {
    /// Instructions write it: a value for each element, or for each row.
    Values { wide: bool },
    /// Truth values, made of this buffer.
    Mask { from: Argument },
    /// Values rounded to `bf16`, of this buffer.
    Rounded { from: Argument, bf16: Bf16 },
    /// The sum over rows of this buffer.
    Sum {
        from: Argument,
        columns: usize,
        /// The dimensions, but the last, of what is summed, and whether each of them stays.
        dims: Vec<(usize, bool)>,
    },
}

impl Display for Region {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let outputs = self.outputs.iter().flat_map(|output| &output.tensors).map(text).collect::<Vec<_>>().join(", ");
        let inputs = self.inputs.iter().map(|input| text(&input.tensor)).collect::<Vec<_>>().join(", ");
        write!(f, "{outputs} = region of {} in {}x{}({inputs})", self.nodes, self.rows, self.columns)
    }
}
