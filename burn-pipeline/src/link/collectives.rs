//! Collectives that a transport runs by itself: those of tensor-parallel groups, and the sums of tied parameters.
//!
//! Over a link without them ([`Link::collectives`](super::Link::collectives)) ranks send each other messages instead.
//! These collectives take flat tensors: a tensor that is cut or joined along another axis than the first is permuted
//! before and after.

use super::error::LinkError;
use crate::payload::AnyTensor;
use std::time::Instant;

/// A collective of a group, in which each member has one flat tensor.
///
/// `n` is a number of elements, `size` the number of members, and a root is a member's index in the group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlatCollective {
    /// Every member gets the sum of all members' tensors: `[n]` to `[n]`.
    AllReduce,
    /// Every member gets the tensors of all, in member order: `[n]` to `[size * n]`.
    AllGather,
    /// Every member gets its part of the sum of all members' tensors: `[size * n]` to `[n]`.
    ReduceScatter,
    /// Every member gets the parts that all members have for it, in member order: `[size * n]` to `[size * n]`.
    AllToAll,
    /// Every member gets the root's tensor: `[n]` to `[n]`.
    Broadcast {
        /// The member whose tensor all members get.
        root: usize,
    },
    /// The root gets the sum of all members' tensors: `[n]` to `[n]`. The other members get arbitrary elements.
    Reduce {
        /// The member that gets the sum.
        root: usize,
    },
}

/// The collectives of a transport, over one group for each rank.
///
/// All members of a group begin the same collectives in the same order, and end them in that order. A sum has the
/// same bits on all members; the transport chooses the order in which it adds the terms.
pub trait Collectives {
    /// Forms the groups. All ranks call it once, each with the ranks of its own group in ascending order; a rank in
    /// no group passes itself alone. Groups do not overlap.
    ///
    /// # Errors
    /// Returns [`LinkError`] if another rank failed, or the deadline passed.
    fn form(&mut self, group: &[usize], deadline: Instant) -> Result<(), LinkError>;

    /// Begins a collective without waiting for the other members. `what` describes it. If the members' descriptions
    /// differ, all of them get [`LinkError::Members`] from [`Collectives::end`].
    ///
    /// # Errors
    /// Returns [`LinkError`] if the link has ended.
    fn begin(&mut self, collective: FlatCollective, what: String, tensor: AnyTensor) -> Result<(), LinkError>;

    /// Waits for the oldest collective that was begun and not ended, and returns its result as a flat tensor.
    ///
    /// # Errors
    /// Returns [`LinkError`] if members began different collectives, another rank failed or left, or the deadline
    /// passed.
    fn end(&mut self, deadline: Instant) -> Result<AnyTensor, LinkError>;

    /// Waits until all members of the group have called it with the same `what`. No collective may be open.
    ///
    /// # Errors
    /// As [`Collectives::end`].
    fn meet(&mut self, what: String, deadline: Instant) -> Result<(), LinkError>;

    /// Forms the sets of ranks of [`Collectives::sum`], which may overlap. All ranks call it once with the same list,
    /// members or not.
    ///
    /// # Errors
    /// If another rank failed, or the deadline passed.
    fn form_sets(&mut self, sets: &[Vec<usize>], deadline: Instant) -> Result<(), LinkError>;

    /// Sums lists of tensors over a set of ranks, and waits for the sums. All members get the same bits. A tensor that
    /// one member lacks counts as zero there; one that all members lack stays `None`.
    ///
    /// `set` is the set's index in the list of [`Collectives::form_sets`], and `ranks` its members in ascending order.
    /// Ranks that are in several sets sum over them in ascending order of `set`.
    ///
    /// # Errors
    /// If another rank failed or left, the deadline passed, or members give different lists ([`LinkError::Lists`]).
    fn sum(
        &mut self,
        set: usize,
        ranks: &[usize],
        tensors: Vec<Option<AnyTensor>>,
        deadline: Instant,
    ) -> Result<Vec<Option<AnyTensor>>, LinkError>;
}
