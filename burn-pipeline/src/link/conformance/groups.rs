//! Cases of groups: sums, pieces and broadcasts of lists, in the order of ranks.

use super::material::{assert_same, barrier, deadline, numbers};
use crate::link::{Link, LinkError};
use crate::stage::{AnyTensor, Payload, PayloadPart};
use burn::tensor::DType;

/// Groups in which each rank is a member of several, with other members each time.
fn groups_of(ranks: usize) -> Vec<Vec<usize>> {
    let all = (0..ranks).collect();
    let pairs = (1..ranks).map(|rank| vec![rank - 1, rank]);
    std::iter::once(all).chain(pairs).chain([(0..ranks).step_by(2).collect(), vec![ranks - 1]]).collect()
}

/// A rank's list: lengths that do and do not divide evenly, two element types, an empty tensor, several dimensions.
fn list_of(rank: usize, group: usize) -> Vec<AnyTensor> {
    let flat = |length: usize| numbers(rank, group, length, length) * 0.1;
    let wide = AnyTensor::new(flat(11).cast(DType::F64));
    vec![AnyTensor::new(flat(13)), AnyTensor::new(flat(24).reshape([2, 3, 4])), wide, AnyTensor::new(flat(0))]
}

/// The sums of the ranks' lists, added in rank order and flattened.
fn summed(ranks: &[usize], group: usize) -> Vec<AnyTensor> {
    let lists = ranks.iter().map(|&rank| list_of(rank, group));
    let add = |sums: Vec<AnyTensor>, list: Vec<AnyTensor>| sums.into_iter().zip(list).map(|(a, b)| a.plus(b)).collect();
    let flat = |tensor: AnyTensor| {
        let length = tensor.shape().num_elements();
        tensor.reshape([length].into())
    };
    lists.reduce(add).unwrap().into_iter().map(flat).collect()
}

fn payload_of(list: &[AnyTensor]) -> Payload {
    Payload::from_parts(list.iter().cloned().map(PayloadPart::Tensor))
}

pub(super) fn serves_groups(link: &mut dyn Link) {
    let (me, groups) = (link.rank(), groups_of(link.ranks()));
    link.form_groups(&groups, deadline()).unwrap();
    // Run twice: a second round looks like the first.
    for _ in 0..2 {
        for (number, ranks) in groups.iter().enumerate().filter(|(_, ranks)| ranks.contains(&me)) {
            let expected = summed(ranks, number);
            // Every third member lacks the last tensors; the first has them all.
            let place = ranks.iter().position(|&rank| rank == me).unwrap();
            let lacks = |place: usize| place % 3 == 1;
            let own = list_of(me, number).into_iter().enumerate();
            let own = own.map(|(i, tensor)| (i < 2 || !lacks(place)).then_some(tensor)).chain([None]).collect();
            let sums = link.all_reduce(number, ranks, own, deadline()).unwrap();
            assert!(sums.len() == 5 && sums[4].is_none());
            let whole: Vec<usize> =
                ranks.iter().copied().enumerate().filter(|(p, _)| !lacks(*p)).map(|(_, r)| r).collect();
            for (i, sum) in sums.into_iter().take(4).enumerate() {
                let sum = sum.unwrap();
                assert_eq!(sum.shape(), list_of(me, number)[i].shape());
                let length = sum.shape().num_elements();
                let expected = if i < 2 { expected[i].clone() } else { summed(&whole, number)[i].clone() };
                assert_same(&payload_of(&[sum.reshape([length].into())]), &payload_of(&[expected]));
            }
            // Pieces, and whole again.
            let pieces = link.reduce_scatter(number, ranks, list_of(me, number), deadline()).unwrap();
            for (piece, whole) in pieces.iter().zip(&expected) {
                let length = whole.shape().num_elements();
                let each = length.div_ceil(ranks.len());
                let (start, end) = ((place * each).min(length), ((place + 1) * each).min(length));
                assert_eq!(piece.shape().num_elements(), end - start);
                if start < end {
                    assert_same(
                        &payload_of(std::slice::from_ref(piece)),
                        &payload_of(&[whole.clone().narrow(0, start, end)]),
                    );
                }
            }
            let gathered = link.all_gather_pieces(number, ranks, pieces, deadline()).unwrap();
            assert_same(&payload_of(&gathered), &payload_of(&expected));
            for &root in ranks {
                let given = link.broadcast(number, ranks, root, list_of(me, number), deadline()).unwrap();
                assert_same(&payload_of(&given), &payload_of(&list_of(root, number)));
            }
        }
    }
    link.barrier(deadline()).unwrap();
}

pub(super) fn refuses_other_lists(link: &mut dyn Link) {
    let (me, all) = (link.rank(), (0..link.ranks()).collect::<Vec<_>>());
    let last = link.ranks() - 1;
    link.form_groups(std::slice::from_ref(&all), deadline()).unwrap();
    let mut list = list_of(me, 0);
    if me == last {
        list.truncate(3);
    }
    match link.reduce_scatter(0, &all, list, deadline()) {
        Err(LinkError::Lists { rank, peer, .. }) => assert!(rank == me && (me == last || peer == last)),
        other => panic!("{other:?}"),
    }
    barrier(link);
}
