//! Regions: nodes that run together, tile by tile, so that their internal tensors never leave the cache.
//!
//! Guarantees: the results of a region depend only on the values of its inputs, not on their layouts or the number of
//! threads. Rows are added to sums in their order within pieces that depend on sizes alone, and pieces in their
//! order.
//!
//! 1. Nodes are lowered to instructions over buffers ([`lower`]). Values that are equal along a row are computed once
//!    per row. A tensor that is read outside is written to its own storage, from which the region itself also reads it.
//!    Tiles hold `f32`: half-precision inputs are widened as they are copied into the tile, results in half precision
//!    are rounded at once, and those that are read outside are stored at the end.
//! 2. Values that do not live at the same time share buffers of a tile ([`slots`]).
//! 3. A run finds the rows of its inputs ([`places`]). It reads them in place if their elements are contiguous, and
//!    otherwise copies them into the tile ([`source`], [`run`]). [`sums`] says to which row of a sum each row is
//!    added.
//! 4. A region that alone reads a batch of matmuls runs right after each matrix, while that is in the cache
//!    ([`blocks`]).
//! 5. The bytes of its outputs during and after a run are known before ([`memory`]).
//!
//! A region is run by a loop over instructions, each of which is selected once per tile of 2,048 elements. No machine
//! code is generated: that would need a dependency larger than this repository.

mod blocks;
mod lower;
mod memory;
mod places;
mod run;
mod slots;
mod source;
mod sums;

use crate::graph::text;
use crate::half::Half;
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
    /// The number of slots with a value for each element of a tile.
    pub(crate) wide_slots: usize,
    /// The number of slots with a value for each row of a tile.
    pub(crate) row_slots: usize,
    /// True if rows are reduced, so that a tile has whole rows.
    pub(crate) whole_rows: bool,
    /// The number of nodes.
    pub(crate) nodes: usize,
}

/// A tensor that a region reads.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Input {
    pub(crate) tensor: TensorIr,
    /// The dimensions, except the last, of the tensor to which it is broadcast.
    pub(crate) over: Vec<usize>,
    /// True if it has a value for each element; false for one for each row.
    pub(crate) wide: bool,
}

/// Tensors of one result, which share their storage.
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
    /// Truth values of this buffer's values.
    Mask { from: Argument },
    /// This buffer's values, which are rounded to the type.
    Half { from: Argument, half: Half },
    /// The sum over rows of this buffer.
    Sum {
        from: Argument,
        columns: usize,
        /// The dimensions of the summed tensor, except the last, and whether each of them stays.
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
