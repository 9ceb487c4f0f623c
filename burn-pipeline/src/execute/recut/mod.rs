//! What crosses between two groups of ranks of different sizes, re-cut on the way.
//!
//! Guarantees: each rank of the receiving group gets every whole tensor once, from one rank of the sending group, and every element of
//! its piece of a cut one once, from a rank that has it; between groups of one size values pass as they are. How many messages a
//! rank sends to which others depends on the sizes alone ([`Grid::counterparts`]), so both ends of a channel know it.
//!
//! One size divides the other.
//!
//! 1. *More receivers than senders*: each sender has equally many counterparts. Each of them gets all that is whole, and one part of the
//!    sender's piece of what is cut.
//! 2. *More senders than receivers*: each receiver has equally many counterparts. The first sends it all; the others send their
//!    pieces, and tags, by which the receiver sees that the messages are of one value. It joins the pieces. Nobody sees any more what
//!    the others hold whole, so in the first row they send hashes of it, which must be those of what the first sends.
//! 3. *Gradients* are a list without marks, in which a piece's gradient is a piece. Before they are re-cut they get the marks of the
//!    values that they belong to ([`marked`]), and what arrives loses them ([`unmarked`]).
//!
//! Read `part` (what messages are lists of, and their marks), then `cut`, then `join`, then `first` (both ends at once).

mod cut;
mod first;
mod join;
mod part;
#[cfg(all(test, feature = "flex"))]
mod tests;

pub(super) use cut::Recut;
pub(crate) use first::received_by_first;
pub(super) use part::{cuts, marked, unmarked};

#[cfg(doc)]
use crate::group::Grid;
