//! Operations of a group of ranks on lists of tensors, made of messages alone.
//!
//! Guarantees: every member ends with bitwise equal results, since each sum is made once, in rank order. A list
//! travels as one buffer for each element type ([`tensor_list`](super::tensor_list)).
//!
//! 1. *All-reduce*: the lowest rank receives the other members' lists in rank order, adds them in that order, and
//!    sends back the sums. Ranks in several groups take them in one order, so the unfinished group with the
//!    smallest number can always proceed.
//! 2. *Reduce-scatter*: every member cuts each flattened tensor into one piece for each member, sends the pieces,
//!    and sums those that it receives. *All-gather*: every member sends its pieces to all others. Together they are
//!    an all-reduce in which each member sends and receives less than twice the list, whatever the number of
//!    members (Thakur, Rabenseifner and Gropp, 2005).
//! 3. Every member sends everything before it receives anything. This cannot deadlock, since no send waits for its
//!    receive (the contract of [`Link::send`](crate::link::Link::send)).

use super::group_messages::GroupMessages;
use super::tensor_list::{TensorList, cut, join, pack, sum, unpack};
use crate::link::error::LinkError;
use crate::link::header::{Header, Message, MessageKind};
use crate::stage::AnyTensor;
use std::time::Instant;

/// The header of a group's messages.
fn header(group: usize) -> Header {
    Header::of(MessageKind::Collective { group })
}

/// See [`Link::reduce_scatter`](crate::link::Link::reduce_scatter).
pub(in crate::link) fn reduce_scatter<L: GroupMessages + ?Sized>(
    link: &mut L,
    group: usize,
    ranks: &[usize],
    tensors: Vec<AnyTensor>,
    deadline: Instant,
) -> Result<Vec<AnyTensor>, LinkError> {
    let cuts: Vec<Vec<AnyTensor>> = tensors.into_iter().map(|tensor| cut(tensor, ranks.len())).collect();
    let piece = |place: usize| cuts.iter().map(|pieces| Some(pieces[place].clone())).collect();
    let lists = exchange(link, group, ranks, (0..ranks.len()).map(piece).collect(), deadline)?;
    let rank = link.own_rank();
    let mut lists = ranks.iter().zip(lists);
    let (_, mut total) = lists.next().unwrap_or((&rank, Vec::new()));
    for (&peer, list) in lists {
        total = sum(total, list).map_err(|reason| LinkError::Lists { rank, peer, reason })?;
    }
    Ok(total.into_iter().flatten().collect())
}

/// See [`Link::all_gather_pieces`](crate::link::Link::all_gather_pieces).
pub(in crate::link) fn all_gather_pieces<L: GroupMessages + ?Sized>(
    link: &mut L,
    group: usize,
    ranks: &[usize],
    pieces: Vec<AnyTensor>,
    deadline: Instant,
) -> Result<Vec<AnyTensor>, LinkError> {
    let (rank, count) = (link.own_rank(), pieces.len());
    let (own, sent): (_, TensorList) = (pieces.clone(), pieces.into_iter().map(Some).collect());
    let lists = exchange(link, group, ranks, vec![sent; ranks.len()], deadline)?;
    let mut whole: Vec<Vec<AnyTensor>> = vec![Vec::new(); count];
    for (&peer, list) in ranks.iter().zip(lists) {
        let list: Vec<AnyTensor> = list.into_iter().flatten().collect();
        if list.len() != count {
            let reason = format!("{} tensors came, {count} are held", list.len());
            return Err(LinkError::Lists { rank, peer, reason });
        }
        let alike = |(ours, theirs): (&AnyTensor, &AnyTensor)| ours.dtype() == theirs.dtype() && theirs.rank() == 1;
        if let Some(place) = own.iter().zip(&list).position(|pair| !alike(pair)) {
            let (got, held) = (&list[place], own[place].dtype());
            let reason = format!("a piece {:?} of {:?} came, a flat one of {held:?} is held", got.shape(), got.dtype());
            return Err(LinkError::Lists { rank, peer, reason });
        }
        whole.iter_mut().zip(list).for_each(|(pieces, piece)| pieces.push(piece));
    }
    Ok(whole.into_iter().filter_map(join).collect())
}

/// See [`Link::broadcast`](crate::link::Link::broadcast).
pub(in crate::link) fn broadcast<L: GroupMessages + ?Sized>(
    link: &mut L,
    group: usize,
    ranks: &[usize],
    root: usize,
    tensors: Vec<AnyTensor>,
    deadline: Instant,
) -> Result<Vec<AnyTensor>, LinkError> {
    let header = header(group);
    if link.own_rank() != root {
        return Ok(receive(link, group, root, deadline)?.into_iter().flatten().collect());
    }
    let payload = pack(tensors.iter().cloned().map(Some).collect());
    for &peer in ranks.iter().filter(|&&peer| peer != root) {
        link.send_to_member(group, peer, Message { header, payload: payload.clone() }, deadline)?;
    }
    Ok(tensors)
}

/// Sends each member its list; returns the lists that all members have for this rank, in rank order.
fn exchange<L: GroupMessages + ?Sized>(
    link: &mut L,
    group: usize,
    ranks: &[usize],
    lists: Vec<TensorList>,
    deadline: Instant,
) -> Result<Vec<TensorList>, LinkError> {
    let (me, header) = (link.own_rank(), header(group));
    let mut lists: Vec<Option<TensorList>> = lists.into_iter().map(Some).collect();
    let own = ranks.iter().position(|&rank| rank == me).and_then(|place| lists[place].take());
    let mut own = own.ok_or(LinkError::NoSuchGroup { rank: me, group, other: me })?;
    let mut send = |link: &mut L, place: usize| {
        let payload = pack(lists[place].take().unwrap_or_default());
        link.send_to_member(group, ranks[place], Message { header, payload }, deadline)
    };
    (0..ranks.len()).filter(|&place| ranks[place] != me).try_for_each(|place| send(link, place))?;
    let mut got = Vec::with_capacity(ranks.len());
    for &peer in ranks {
        got.push(if peer == me { std::mem::take(&mut own) } else { receive(link, group, peer, deadline)? });
    }
    Ok(got)
}

/// Receives a list from a member.
fn receive<L: GroupMessages + ?Sized>(
    link: &mut L,
    group: usize,
    peer: usize,
    deadline: Instant,
) -> Result<TensorList, LinkError> {
    let payload = link.receive_from_member(group, peer, header(group), deadline)?;
    let rank = link.own_rank();
    unpack(payload).map_err(|reason| LinkError::Lists { rank, peer, reason })
}

/// See [`Link::all_reduce`](crate::link::Link::all_reduce).
pub(in crate::link) fn all_reduce<L: GroupMessages + ?Sized>(
    link: &mut L,
    group: usize,
    ranks: &[usize],
    mut tensors: TensorList,
    deadline: Instant,
) -> Result<TensorList, LinkError> {
    let Some((&root, others)) = ranks.split_first() else { return Ok(tensors) };
    if link.own_rank() != root {
        link.send_to_member(group, root, Message { header: header(group), payload: pack(tensors) }, deadline)?;
        return receive(link, group, root, deadline);
    }
    for &peer in others {
        let theirs = receive(link, group, peer, deadline)?;
        tensors = sum(tensors, theirs).map_err(|reason| LinkError::Lists { rank: root, peer, reason })?;
    }
    let payload = pack(tensors.clone());
    for &peer in others {
        link.send_to_member(group, peer, Message { header: header(group), payload: payload.clone() }, deadline)?;
    }
    Ok(tensors)
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;
    use crate::link::{Link, Threads};
    use burn::tensor::{Device, Int, Tensor};
    use std::time::Duration;

    #[test]
    fn integers_are_not_summed() {
        let ints = || vec![Some(AnyTensor::new(Tensor::<1, Int>::zeros([4], &Device::flex())))];
        let summed = |link: &mut dyn Link| {
            link.all_reduce(0, &[0, 1], ints(), Instant::now() + Duration::from_secs(20)).map(drop)
        };
        let threads = Threads::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| summed(&mut threads.link(1, Device::flex())));
            let error = summed(&mut threads.link(0, Device::flex())).unwrap_err();
            assert!(error.to_string().contains("only floats are added"), "{error}");
        });
    }

    #[test]
    fn pieces_of_another_element_type_or_rank_are_refused() {
        let device = Device::flex();
        let floats = AnyTensor::new(Tensor::<1>::zeros([4], &device));
        let ints = AnyTensor::new(Tensor::<1, Int>::zeros([4], &device));
        let square = AnyTensor::new(Tensor::<2>::zeros([2, 2], &device));
        for theirs in [ints, square] {
            let threads = Threads::new(2);
            let deadline = Instant::now() + Duration::from_secs(20);
            std::thread::scope(|scope| {
                let mut link = threads.link(1, device.clone());
                scope.spawn(move || link.all_gather_pieces(0, &[0, 1], vec![theirs], deadline).map(drop));
                let mut link = threads.link(0, device.clone());
                let error = link.all_gather_pieces(0, &[0, 1], vec![floats.clone()], deadline).unwrap_err();
                assert!(matches!(error, LinkError::Lists { rank: 0, peer: 1, .. }), "{error}");
            });
        }
    }
}
