//! A sum over some ranks, by messages alone.
//!
//! Guarantees: every member ends with bit-equal sums, since they are made once, by the lowest rank, in rank order;
//! nothing deadlocks even where a send waits for its receive: members other than the lowest send before they
//! receive, the lowest receives from all before it sends, and ranks that are in several groups go through them in
//! one order, so the group with the smallest number that is not done can always go on.

use super::group::{header, pack, receive};
use super::{Link, LinkError, Message};
use crate::stage::AnyTensor;
use std::time::Instant;

/// A list of tensors, of which some may be missing.
pub type Tensors = Vec<Option<AnyTensor>>;

/// [`Link::all_reduce`] as it is unless a transport has something better.
///
/// # Errors
/// As [`Link::all_reduce`].
pub fn by_messages<L: Link + ?Sized>(
    link: &mut L,
    number: usize,
    ranks: &[usize],
    mut tensors: Tensors,
    deadline: Instant,
) -> Result<Tensors, LinkError> {
    let Some((&root, others)) = ranks.split_first() else { return Ok(tensors) };
    if link.rank() != root {
        link.send_in(number, root, Message { header: header(number), payload: pack(tensors) }, deadline)?;
        return receive(link, number, root, deadline);
    }
    for &peer in others {
        let theirs = receive(link, number, peer, deadline)?;
        tensors = sum(tensors, theirs).map_err(|reason| LinkError::Lists { rank: root, peer, reason })?;
    }
    let payload = pack(tensors.clone());
    for &peer in others {
        link.send_in(number, peer, Message { header: header(number), payload: payload.clone() }, deadline)?;
    }
    Ok(tensors)
}

/// The sum of two lists, place by place.
pub(super) fn sum(ours: Tensors, theirs: Tensors) -> Result<Tensors, String> {
    if ours.len() != theirs.len() {
        return Err(format!("{} tensors came, {} are held", theirs.len(), ours.len()));
    }
    let add = |pair| match pair {
        (Some(ours), Some(theirs)) => add(ours, theirs).map(Some),
        (one, other) => Ok(one.or(other)),
    };
    ours.into_iter().zip(theirs).map(add).collect()
}

fn add(ours: AnyTensor, theirs: AnyTensor) -> Result<AnyTensor, String> {
    if ours.shape() != theirs.shape() || ours.dtype() != theirs.dtype() {
        let form = |tensor: &AnyTensor| format!("{:?} of {:?}", tensor.shape(), tensor.dtype());
        return Err(format!("a tensor {} came, one {} is held", form(&theirs), form(&ours)));
    }
    Ok(ours.plus(theirs))
}
