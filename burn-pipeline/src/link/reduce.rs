//! A sum over some ranks, by messages alone.
//!
//! Guarantees: every member ends with bit-equal sums, since they are made once, by the lowest rank, in rank order;
//! nothing deadlocks even where a send waits for its receive: members other than the lowest send before they
//! receive, the lowest receives from all before it sends, and ranks that are in several groups go through them in
//! one order, so the group with the smallest number that is not done can always go on.

use super::{Direction, Header, Link, LinkError, Message};
use crate::plan::Stage;
use crate::stage::{AnyTensor, Boundary};
use std::time::Instant;

type Tensors = Vec<Option<AnyTensor>>;

/// See [`Link::all_reduce`].
pub(super) fn by_messages<L: Link + ?Sized>(
    link: &mut L,
    number: usize,
    ranks: &[usize],
    mut tensors: Tensors,
    deadline: Instant,
) -> Result<Tensors, LinkError> {
    let Some((&root, others)) = ranks.split_first() else { return Ok(tensors) };
    let header = Header { stage: Stage::new(0), microbatch: number, direction: Direction::Shared };
    let message = |tensors: Tensors| Message { header, payload: tensors.into_payload() };
    if link.rank() != root {
        link.send(root, message(tensors), deadline)?;
        return receive(link, root, header, deadline);
    }
    for &peer in others {
        let theirs = receive(link, peer, header, deadline)?;
        tensors = sum(tensors, theirs).map_err(|reason| LinkError::Lists { rank: root, peer, reason })?;
    }
    for &peer in others {
        link.send(peer, message(tensors.clone()), deadline)?;
    }
    Ok(tensors)
}

fn receive<L: Link + ?Sized>(
    link: &mut L,
    peer: usize,
    header: Header,
    deadline: Instant,
) -> Result<Tensors, LinkError> {
    let payload = link.receive(peer, header, deadline)?;
    let rank = link.rank();
    Tensors::from_payload(payload).map_err(|error| LinkError::Lists { rank, peer, reason: error.to_string() })
}

/// The sum of two lists, place by place.
fn sum(ours: Tensors, theirs: Tensors) -> Result<Tensors, String> {
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
