//! What groups of ranks do with lists of tensors, by messages alone.
//!
//! Guarantees: every member ends with bit-equal results, since each sum is made once, in the order of ranks; a list
//! travels as one buffer an element type, however many tensors it has; and nothing deadlocks even where a send waits for
//! its receive: pairs of members exchange in one order, lower ranks first.
//!
//! 1. [`pack`] lays the tensors of a list end to end, and [`unpack`] takes them apart again: their shapes go along as
//!    forms. A tensor that is missing stays missing.
//! 2. *Reduce-scatter*: every member cuts each tensor, flattened, into one piece a member, and sends each its piece; it
//!    adds up the pieces that it gets. *All-gather*: every member sends its pieces to all others. One after the other,
//!    they are an all-reduce in which each member sends and receives less than twice the list, however many there are
//!    (Thakur, Rabenseifner and Gropp, 2005).
//! 3. Where a send does not wait for its receive, all is sent before anything is awaited.

use super::gather;
use super::reduce::{Tensors, sum};
use super::{Direction, Header, Link, LinkError, Message};
use crate::plan::{StageId, Transport};
use crate::stage::{AnyTensor, Payload, PayloadPart};
use burn::tensor::{DType, Shape};
use std::time::Instant;

/// Refuses groups that are none, and lists that are not the same on all ranks. All ranks call it.
///
/// # Errors
/// If a rank gives another list, or one with a rank that there is not; as [`Link::all_gather`].
pub fn same_groups(link: &mut dyn Link, groups: &[Vec<usize>], deadline: Instant) -> Result<(), LinkError> {
    let (rank, ranks) = (link.rank(), link.ranks());
    let table: Vec<Vec<Vec<usize>>> = gather(link, &groups.to_vec(), deadline)?;
    if let Some(peer) = table.iter().position(|theirs| theirs != groups) {
        return Err(LinkError::Groups { rank, peer });
    }
    match groups.iter().flatten().find(|&&member| member >= ranks) {
        Some(&member) => Err(LinkError::NoSuchRank { rank: member, ranks }),
        None => Ok(()),
    }
}

/// The header of a group's messages.
pub(super) fn header(number: usize) -> Header {
    Header { stage: StageId::new(0), microbatch: number, direction: Direction::Shared }
}

/// See [`Link::reduce_scatter`].
pub(super) fn reduce_scatter<L: Link + ?Sized>(
    link: &mut L,
    number: usize,
    ranks: &[usize],
    tensors: Vec<AnyTensor>,
    deadline: Instant,
) -> Result<Vec<AnyTensor>, LinkError> {
    let cuts: Vec<Vec<AnyTensor>> = tensors.into_iter().map(|tensor| cut(tensor, ranks.len())).collect();
    let piece = |place: usize| cuts.iter().map(|pieces| Some(pieces[place].clone())).collect();
    let lists = exchange(link, number, ranks, (0..ranks.len()).map(piece).collect(), deadline)?;
    let rank = link.rank();
    let mut lists = ranks.iter().zip(lists);
    let (_, mut total) = lists.next().unwrap_or((&rank, Vec::new()));
    for (&peer, list) in lists {
        total = sum(total, list).map_err(|reason| LinkError::Lists { rank, peer, reason })?;
    }
    Ok(total.into_iter().flatten().collect())
}

/// See [`Link::all_gather_pieces`].
pub(super) fn all_gather_pieces<L: Link + ?Sized>(
    link: &mut L,
    number: usize,
    ranks: &[usize],
    pieces: Vec<AnyTensor>,
    deadline: Instant,
) -> Result<Vec<AnyTensor>, LinkError> {
    let (rank, count) = (link.rank(), pieces.len());
    let own: Tensors = pieces.into_iter().map(Some).collect();
    let lists = exchange(link, number, ranks, vec![own; ranks.len()], deadline)?;
    let mut whole: Vec<Vec<AnyTensor>> = vec![Vec::new(); count];
    for (&peer, list) in ranks.iter().zip(lists) {
        let list: Vec<AnyTensor> = list.into_iter().flatten().collect();
        if list.len() != count {
            let reason = format!("{} tensors came, {count} are held", list.len());
            return Err(LinkError::Lists { rank, peer, reason });
        }
        whole.iter_mut().zip(list).for_each(|(pieces, piece)| pieces.push(piece));
    }
    Ok(whole.into_iter().filter_map(join).collect())
}

/// See [`Link::broadcast`].
pub(super) fn broadcast<L: Link + ?Sized>(
    link: &mut L,
    number: usize,
    ranks: &[usize],
    root: usize,
    tensors: Vec<AnyTensor>,
    deadline: Instant,
) -> Result<Vec<AnyTensor>, LinkError> {
    let header = header(number);
    if link.rank() != root {
        return Ok(receive(link, number, root, deadline)?.into_iter().flatten().collect());
    }
    let payload = pack(tensors.iter().cloned().map(Some).collect());
    for &peer in ranks.iter().filter(|&&peer| peer != root) {
        link.send_in(number, peer, Message { header, payload: payload.clone() }, deadline)?;
    }
    Ok(tensors)
}

/// Gives each member its list; gives the lists of all members for this one, in the order of ranks.
fn exchange<L: Link + ?Sized>(
    link: &mut L,
    number: usize,
    ranks: &[usize],
    lists: Vec<Tensors>,
    deadline: Instant,
) -> Result<Vec<Tensors>, LinkError> {
    let (me, header) = (link.rank(), header(number));
    let ahead = link.capabilities().transport != Transport::Rendezvous;
    let mut lists: Vec<Option<Tensors>> = lists.into_iter().map(Some).collect();
    let own = ranks.iter().position(|&rank| rank == me).and_then(|place| lists[place].take());
    let own = own.ok_or(LinkError::NoSuchGroup { rank: me, group: number, other: me })?;
    let mut send = |link: &mut L, place: usize| {
        let payload = pack(lists[place].take().unwrap_or_default());
        link.send_in(number, ranks[place], Message { header, payload }, deadline)
    };
    let others = || (0..ranks.len()).filter(|&place| ranks[place] != me);
    if ahead {
        others().try_for_each(|place| send(link, place))?;
    }
    let mut own = Some(own);
    let mut got = Vec::with_capacity(ranks.len());
    for (place, &peer) in ranks.iter().enumerate() {
        if peer == me {
            got.extend(own.take());
            continue;
        }
        if !ahead && me < peer {
            send(link, place)?;
        }
        got.push(receive(link, number, peer, deadline)?);
        if !ahead && me > peer {
            send(link, place)?;
        }
    }
    Ok(got)
}

/// A group's list from a member.
pub(super) fn receive<L: Link + ?Sized>(
    link: &mut L,
    number: usize,
    peer: usize,
    deadline: Instant,
) -> Result<Tensors, LinkError> {
    let payload = link.receive_in(number, peer, header(number), deadline)?;
    let rank = link.rank();
    unpack(payload).map_err(|reason| LinkError::Lists { rank, peer, reason })
}

/// A tensor, flattened, in as many pieces; the last ones are shorter, or empty, where it is not even.
fn cut(tensor: AnyTensor, parts: usize) -> Vec<AnyTensor> {
    let length = tensor.shape().num_elements();
    let flat = tensor.reshape(Shape::from([length]));
    let each = length.div_ceil(parts.max(1));
    let piece = |part: usize| match ((part * each).min(length), ((part + 1) * each).min(length)) {
        (start, end) if start < end => flat.clone().narrow(0, start, end),
        _ => flat.zeros(Shape::from([0])),
    };
    (0..parts).map(piece).collect()
}

/// Pieces as one flat tensor.
fn join(pieces: Vec<AnyTensor>) -> Option<AnyTensor> {
    let whole = |piece: &AnyTensor| piece.shape().num_elements() > 0;
    match pieces.iter().filter(|piece| whole(piece)).count() {
        0 => pieces.into_iter().next(),
        1 => pieces.into_iter().find(whole),
        _ => AnyTensor::cat(pieces.into_iter().filter(whole).collect(), 0),
    }
}

/// A list as one buffer an element type. Forms: how many tensors; of each, 0 if it is missing, else its buffer's number
/// from 1, its number of dimensions, and these.
pub(super) fn pack(tensors: Tensors) -> Payload {
    let mut payload = Payload::default();
    let mut buffers: Vec<(DType, Vec<AnyTensor>)> = Vec::new();
    payload.push_tag(tensors.len());
    for tensor in tensors {
        let Some(tensor) = tensor else {
            payload.push_tag(0);
            continue;
        };
        let (dtype, shape) = (tensor.dtype(), tensor.shape());
        let known = buffers.iter().position(|(other, _)| *other == dtype);
        let place = known.unwrap_or_else(|| {
            buffers.push((dtype, Vec::new()));
            buffers.len() - 1
        });
        payload.push_tag(place + 1);
        payload.push_tag(shape.num_dims());
        shape.to_vec().into_iter().for_each(|size| payload.push_tag(size));
        let length = shape.num_elements();
        buffers[place].1.push(tensor.reshape(Shape::from([length])));
    }
    buffers.into_iter().filter_map(|(_, pieces)| join(pieces)).for_each(|buffer| payload.push_tensor(buffer));
    payload
}

/// The list that was packed.
pub(super) fn unpack(payload: Payload) -> Result<Tensors, String> {
    let (mut forms, mut buffers) = (Vec::new(), Vec::new());
    for part in payload.into_parts() {
        match part {
            PayloadPart::Tag(form) => forms.push(form),
            PayloadPart::Tensor(tensor) => buffers.push((tensor, 0usize)),
        }
    }
    let mut forms = forms.into_iter();
    let mut form = || forms.next().ok_or("its forms end too early");
    let mut list = Vec::new();
    for _ in 0..form()? {
        let Some(place) = form()?.checked_sub(1) else {
            list.push(None);
            continue;
        };
        let dims = form()?;
        let shape: Vec<usize> = (0..dims).map(|_| form()).collect::<Result<_, _>>()?;
        let (buffer, taken) = buffers.get_mut(place).ok_or("a buffer is missing")?;
        let length = shape.iter().try_fold(1usize, |all, &size| all.checked_mul(size)).ok_or("a shape is too large")?;
        let (start, end) = (*taken, taken.checked_add(length).ok_or("a shape is too large")?);
        let held = buffer.shape().num_elements();
        if end > held {
            return Err(format!("a buffer of {held} elements came for {end}"));
        }
        *taken = end;
        let flat = match length {
            0 => buffer.zeros(Shape::from([0])),
            _ if length == held => buffer.clone(),
            _ => buffer.clone().narrow(0, start, end),
        };
        list.push(Some(flat.reshape(Shape::from(shape))));
    }
    Ok(list)
}
