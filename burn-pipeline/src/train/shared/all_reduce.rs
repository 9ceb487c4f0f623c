//! The sum of lists of tensors over a set of ranks.
//!
//! Guarantees: every member ends with the same bits; no circle of waits.
//!
//! 1. Where the link has collectives of its own ([`Collectives::sum`](crate::link::Collectives::sum)), it sums.
//! 2. Elsewhere the lowest rank receives the other members' lists in rank order, adds them in that order, and sends
//!    the sums back. A list travels as one buffer for each element type ([`list`](super::list)).
//! 3. All ranks take their sets in ascending order of number. So the unfinished set with the smallest number can
//!    always go on: nothing that its members wait for comes after another wait.
//! 4. Sums run after the row, when no message of the plan is under way between members.

use super::list::{TensorList, pack, sum, unpack};
use crate::link::{Header, Link, LinkError, Message, MessageKind, TRANSFER};
use crate::payload::AnyTensor;
use std::time::Instant;

/// Sums lists over the ranks `ranks` of the set `set`. A tensor that one member lacks counts as zero there; one that
/// all members lack stays `None`.
///
/// # Errors
/// Returns [`LinkError`] if another rank failed, the deadline passed, or members give different lists.
pub(super) fn all_reduce(
    link: &mut dyn Link,
    (set, ranks): (usize, &[usize]),
    mut tensors: TensorList,
    deadline: Instant,
) -> Result<TensorList, LinkError> {
    let bytes = tensors.iter().flatten().map(AnyTensor::bytes).sum::<usize>();
    let (rank, kind) = (link.rank(), "AllReduce");
    tracing::debug!(target: TRANSFER, rank, peers = ?ranks, kind, bytes, "given to a group");
    if let Some(collectives) = link.collectives() {
        return collectives.sum(set, ranks, tensors, deadline);
    }
    let Some((&root, others)) = ranks.split_first() else { return Ok(tensors) };
    let header = Header::of(MessageKind::Collective { group: set });
    if link.rank() != root {
        link.send(root, Message { header, payload: pack(tensors) }, deadline)?;
        return receive(link, root, header, deadline);
    }
    for &peer in others {
        let theirs = receive(link, peer, header, deadline)?;
        tensors = sum(tensors, theirs).map_err(|reason| LinkError::Lists { rank: root, peer, reason })?;
    }
    let payload = pack(tensors.clone());
    for &peer in others {
        link.send(peer, Message { header, payload: payload.clone() }, deadline)?;
    }
    Ok(tensors)
}

/// A door for fuzzing: [`all_reduce`] over these ranks.
///
/// # Errors
/// As [`all_reduce`].
#[cfg(fuzzing)]
pub fn sum_over_ranks(
    link: &mut dyn Link,
    ranks: &[usize],
    tensors: Vec<Option<AnyTensor>>,
    deadline: Instant,
) -> Result<Vec<Option<AnyTensor>>, LinkError> {
    all_reduce(link, (0, ranks), tensors, deadline)
}

fn receive(link: &mut dyn Link, peer: usize, header: Header, deadline: Instant) -> Result<TensorList, LinkError> {
    let payload = link.receive(peer, header, deadline)?;
    let rank = link.rank();
    unpack(payload).map_err(|reason| LinkError::Lists { rank, peer, reason })
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use super::*;
    use crate::link::{ThreadLink, Threads};
    use burn::tensor::{DType, Device, Int, Tensor};
    use proptest::prelude::{ProptestConfig, Strategy};
    use proptest::{prop_assert_eq, proptest};
    use std::time::Duration;

    fn deadline() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    /// Two numbers, and the same in another element type and shape.
    fn list(number: f32) -> TensorList {
        let floats = Tensor::<1>::from_floats([number, number / 3.0], &Device::flex());
        let doubles = floats.clone().cast(DType::F64).reshape([2, 1, 1]);
        vec![Some(AnyTensor::new(floats)), None, Some(AnyTensor::new(doubles))]
    }

    /// A set, and for each rank whether it has values to add.
    type Set = (Vec<usize>, Vec<bool>);

    fn sets() -> impl Strategy<Value = Vec<Set>> {
        let ranks = proptest::collection::btree_set(0usize..5, 1..=5).prop_map(|ranks| ranks.into_iter().collect());
        proptest::collection::vec((ranks, proptest::collection::vec(proptest::bool::ANY, 5)), 1..6)
    }

    /// What a rank adds: whole numbers and a third of them, which show the order of additions.
    fn own(rank: usize, gives: bool) -> TensorList {
        if gives { list(0.1 * (rank + 1) as f32) } else { vec![None; 3] }
    }

    /// The results of one rank after the sums over all of its sets.
    fn run(rank: usize, link: &mut ThreadLink, sets: &[Set]) -> Vec<TensorList> {
        let mine = sets.iter().enumerate().filter(|(_, (ranks, _))| ranks.contains(&rank));
        let sum = |(number, (ranks, gives)): (usize, &Set)| {
            all_reduce(link, (number, ranks), own(rank, gives[rank]), deadline()).unwrap()
        };
        mine.map(sum).collect()
    }

    fn bits(lists: Vec<TensorList>) -> Vec<Option<Vec<f64>>> {
        let numbers = |tensor: AnyTensor| tensor.to_data().unwrap().iter::<f64>().collect();
        lists.into_iter().flatten().map(|tensor| tensor.map(numbers)).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn overlapping_sets_are_summed_in_rank_order(sets in sets()) {
            let threads = Threads::new(5);
            let sums: Vec<Vec<TensorList>> = std::thread::scope(|scope| {
                let start = |rank| {
                    let (mut link, sets) = (threads.link(rank, Device::flex()), &sets);
                    scope.spawn(move || run(rank, &mut link, sets))
                };
                let started: Vec<_> = (0..5).map(start).collect();
                started.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            for (rank, sums) in sums.into_iter().enumerate() {
                let mine = sets.iter().filter(|(ranks, _)| ranks.contains(&rank));
                let add = |ours: TensorList, theirs: TensorList| {
                    let plus = |(a, b): (Option<AnyTensor>, Option<AnyTensor>)| match (a, b) {
                        (Some(a), Some(b)) => Some(a.plus(b)),
                        (a, b) => a.or(b),
                    };
                    ours.into_iter().zip(theirs).map(plus).collect()
                };
                let expected = mine.map(|(ranks, gives)| ranks.iter().map(|&r| own(r, gives[r])).reduce(add).unwrap());
                prop_assert_eq!(bits(sums), bits(expected.collect()));
            }
        }
    }

    /// The error of rank 0 where two ranks sum these lists.
    fn refused(lists: [TensorList; 2]) -> LinkError {
        let threads = Threads::new(2);
        let [first, second] = lists;
        std::thread::scope(|scope| {
            let mut other = threads.link(1, Device::flex());
            // It ends when rank 0 drops its end.
            scope.spawn(move || all_reduce(&mut other, (0, &[0, 1]), second, deadline()).map(drop));
            let mut link = threads.link(0, Device::flex());
            let error = all_reduce(&mut link, (0, &[0, 1]), first, deadline()).unwrap_err();
            link.abort(error.to_string());
            error
        })
    }

    #[test]
    fn lists_that_do_not_match_are_refused_with_both_ranks() {
        let ints = || vec![Some(AnyTensor::new(Tensor::<1, Int>::zeros([4], &Device::flex())))];
        let square = vec![Some(AnyTensor::new(Tensor::<2>::zeros([1, 2], &Device::flex()))), None, None];
        for (lists, reason) in [
            ([list(1.0), vec![None]], "1 tensors came, 3 are held"),
            ([list(1.0), square], "a tensor"),
            ([ints(), ints()], "only floats are added"),
        ] {
            let error = refused(lists);
            assert!(matches!(&error, LinkError::Lists { rank: 0, peer: 1, .. }), "{error}");
            assert!(error.to_string().contains(reason), "{error}");
        }
    }
}
