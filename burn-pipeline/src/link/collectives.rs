//! Collectives that a transport runs by itself, for the ranks that hold a stage together.
//!
//! A link without them ([`Link::collectives`](super::Link::collectives)) carries the members' messages instead. They take flat tensors: what
//! is cut or joined along another axis than the first is laid out before and after.

use super::error::LinkError;
use crate::stage::AnyTensor;
use std::time::Instant;

/// What the members of a group do together, each with one flat tensor. `n` is a number of elements, `size` that of members, and a root a place
/// in the group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlatCollective {
    /// Every member gets the sum of all members' tensors: `[n]` to `[n]`.
    AllReduce,
    /// Every member gets the tensors of all, in their order: `[n]` to `[size * n]`.
    AllGather,
    /// Every member gets its part of the sum of all members' tensors: `[size * n]` to `[n]`.
    ReduceScatter,
    /// Every member gets the parts that all members have for it, in their order: `[size * n]` to `[size * n]`.
    AllToAll,
    /// Every member gets the root's tensor: `[n]` to `[n]`.
    Broadcast {
        /// The member whose tensor all get.
        root: usize,
    },
    /// The root gets the sum of all members' tensors: `[n]` to `[n]`. What the others get has arbitrary elements.
    Reduce {
        /// The member that gets the sum.
        root: usize,
    },
}

/// The collectives of a transport, over one group for each rank.
///
/// All members of a group begin the same collectives in the same order, and end them in that order. A sum has the same bits on all members; its
/// terms are added in an order of the transport's own.
pub trait Collectives {
    /// Makes the groups. All ranks call it once, each with the ranks of its own group in ascending order; one in no group gives itself alone. Groups
    /// have no rank in common.
    ///
    /// # Errors
    /// If another rank failed, or the deadline passed.
    fn form(&mut self, group: &[usize], deadline: Instant) -> Result<(), LinkError>;

    /// Begins a collective, and does not wait for the others. `what` says in words which one it is; members that come with other words all
    /// get [`LinkError::Members`] from [`Collectives::end`].
    ///
    /// # Errors
    /// If the link has ended.
    fn begin(&mut self, collective: FlatCollective, what: String, tensor: AnyTensor) -> Result<(), LinkError>;

    /// Waits for the oldest collective that was begun and not ended, and gives its result, flat.
    ///
    /// # Errors
    /// If members came to different ones, another rank failed or left, or the deadline passed.
    fn end(&mut self, deadline: Instant) -> Result<AnyTensor, LinkError>;

    /// Waits until all members of the group are at the place `what`. Nothing that was begun may be left.
    ///
    /// # Errors
    /// As [`Collectives::end`].
    fn meet(&mut self, what: String, deadline: Instant) -> Result<(), LinkError>;
}
