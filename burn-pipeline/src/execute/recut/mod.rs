//! Values between two groups of ranks of different sizes, re-cut on the way.
//!
//! Guarantees: each rank of the receiving group gets every replicated tensor once, from one rank of the sending
//! group, and every element of its piece of a cut tensor once, from a rank that has it. Between groups of equal
//! size, values are unchanged. The number of a rank's messages and their receivers depend only on the sizes
//! ([`Grid::counterparts`]), so both ends of a channel know them.
//!
//! One size divides the other.
//!
//! 1. *More receivers than senders*: each sender has equally many counterparts. Each of them gets all replicated
//!    tensors, and one part of the sender's piece of each cut tensor.
//! 2. *More senders than receivers*: each receiver has equally many counterparts. The first sends everything; the
//!    others send their pieces, and tags that show the receiver that the messages are of one value. The receiver
//!    joins the pieces. It does not see the others' replicated tensors, so in the first row they send hashes of
//!    them, which must equal those of the first.
//! 3. *Gradients* are a list without marks, in which the gradient of a piece is a piece. Before they are re-cut
//!    they get the marks of the values that they belong to, and the receiver removes them
//!    ([`unmarked`]).
//!
//! Read `part` (the parts of messages, and their marks), then `cut`, then `join`.

mod cut;
mod join;
mod part;
#[cfg(test)]
mod tests;

pub(super) use cut::Recut;
pub(crate) use join::received_by_first;
pub(super) use part::{cuts, unmarked};

#[cfg(doc)]
use crate::ranks::Grid;
