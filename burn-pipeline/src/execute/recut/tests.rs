//! Values between groups of any sizes arrive complete, once, and in the right pieces.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use super::{Recut, cuts, unmarked};
use crate::payload::{AnyTensor, Boundary, CutOver, HostValue, Payload, PayloadPart, SpecPart};
use crate::ranks::Grid;
use crate::stage::{Gradients, StageError};
use burn::tensor::{Device, TensorData};
use proptest::prelude::{Strategy, any};
use proptest::{prop_assert_eq, prop_oneof, proptest};

/// One part of a value.
#[derive(Clone, Debug)]
enum Entry {
    Whole(Vec<usize>),
    /// A shape, and the axis that is cut; its size is multiplied by the larger group's.
    Cut(Vec<usize>, usize),
    Host(i64),
    Tag(usize),
}

fn entries() -> impl Strategy<Value = Vec<Entry>> {
    let shape = || proptest::collection::vec(1usize..4, 1..4);
    let cut = (shape(), any::<usize>()).prop_map(|(shape, axis)| Entry::Cut(shape.clone(), axis % shape.len()));
    let host = any::<i64>().prop_map(Entry::Host);
    proptest::collection::vec(
        prop_oneof![shape().prop_map(Entry::Whole), cut, host, (0usize..9).prop_map(Entry::Tag)],
        0..6,
    )
}

/// Sizes of two groups, one of which divides the other.
fn sizes() -> impl Strategy<Value = [usize; 2]> {
    (1usize..4, 1usize..5, any::<bool>()).prop_map(|(small, times, falls)| match falls {
        true => [small * times, small],
        false => [small, small * times],
    })
}

/// A tensor of numbers from `first` on.
fn numbered(first: usize, shape: &[usize]) -> AnyTensor {
    let values: Vec<f32> = (first..first + shape.iter().product::<usize>()).map(|number| number as f32).collect();
    AnyTensor::from_data(TensorData::new(values, shape.to_vec()), &Device::flex())
}

/// The value on one member of a group; all numbers in its tensors differ.
fn held(entries: &[Entry], larger: usize, member: usize, members: usize) -> Payload {
    let (mut payload, mut next) = (Payload::default(), 0);
    let mut tensor = |shape: &[usize]| {
        let tensor = numbered(next, shape);
        next += shape.iter().product::<usize>();
        tensor
    };
    for entry in entries {
        match entry {
            Entry::Whole(shape) => payload.push_tensor(tensor(shape)),
            Entry::Host(value) => payload.push_host(HostValue::Int(*value)),
            Entry::Tag(tag) => payload.push_tag(*tag),
            Entry::Cut(shape, axis) => {
                let (mut shape, axis) = (shape.clone(), *axis);
                shape[axis] *= larger;
                let each = shape[axis] / members;
                payload.push_tag(CutOver { axis, ranks: members }.tag());
                payload.push_tensor(tensor(&shape).narrow(axis, member * each, (member + 1) * each));
            }
        }
    }
    payload
}

fn elements(tensor: &AnyTensor) -> Vec<i64> {
    tensor.to_data().unwrap().iter::<f32>().map(|number| number as i64).collect()
}

/// All parts of a payload with their elements.
fn content(payload: &Payload) -> Vec<(SpecPart, Vec<i64>)> {
    let values = |part: &PayloadPart| match part {
        PayloadPart::Tensor(tensor) => elements(tensor),
        PayloadPart::Host(_) | PayloadPart::Tag(_) => Vec::new(),
    };
    payload.parts().map(|part| (SpecPart::of(part), values(part))).collect()
}

/// The elements of all tensors, sorted.
fn numbers<'a>(payloads: impl IntoIterator<Item = &'a Payload>) -> Vec<i64> {
    let mut all: Vec<i64> = payloads.into_iter().flat_map(Payload::tensors).flat_map(elements).collect();
    all.sort_unstable();
    all
}

/// A value, or gradients with the cuts of the tensors that they belong to.
type Sent = (Payload, Option<Vec<Option<CutOver>>>);

/// The messages of each rank of the first group to the second, by sender and receiver. Ranks are those of a job of
/// two groups.
fn messages(sizes: [usize; 2], compared: bool, value: impl Fn(usize) -> Sent) -> Vec<(usize, usize, Payload)> {
    let sent = |member: usize| {
        let (grid, (payload, cuts)) = (Grid::new(member, 1, sizes.into()), value(member));
        let messages = Recut::between(&grid, 0, 1).messages(member, payload, cuts.as_deref(), compared).unwrap();
        assert_eq!(messages.len(), grid.counterparts(1).len());
        grid.counterparts(1).zip(messages).map(move |(to, payload)| (member, to, payload)).collect::<Vec<_>>()
    };
    (0..sizes[0]).flat_map(sent).collect()
}

/// Joins the messages of a rank of the second group, and checks that they come from the ranks that it expects.
fn joined(sizes: [usize; 2], receiver: usize, sent: &[(usize, usize, Payload)]) -> Payload {
    let grid = Grid::new(receiver, 1, sizes.into());
    let own = sent.iter().filter(|(_, to, _)| *to == receiver);
    let (from, payloads): (Vec<usize>, Vec<Payload>) = own.map(|(from, _, payload)| (*from, payload.clone())).unzip();
    assert_eq!(from, grid.counterparts(0).collect::<Vec<_>>());
    Recut::between(&grid, 0, 1).join(grid.counterparts(0), payloads).unwrap()
}

proptest! {
    #[test]
    fn every_element_is_delivered_once_to_each_rank_that_holds_it(
        sizes in sizes(), entries in entries(), compared in any::<bool>()
    ) {
        let larger = sizes[0].max(sizes[1]);
        let sent = messages(sizes, compared, |member| (held(&entries, larger, member, sizes[0]), None));
        for member in 0..sizes[1] {
            let (rank, expected) = (sizes[0] + member, held(&entries, larger, member, sizes[1]));
            prop_assert_eq!(content(&joined(sizes, rank, &sent)), content(&expected));
            let to_rank = sent.iter().filter(|(_, to, _)| *to == rank).map(|(.., payload)| payload);
            prop_assert_eq!(numbers(to_rank), numbers([&expected]));
        }
        // So the link carries replicated tensors once per receiver, and cut tensors once.
        let bytes = |entry: &Entry| match entry {
            Entry::Whole(shape) => 4 * shape.iter().product::<usize>() * sizes[1],
            Entry::Cut(shape, _) => 4 * shape.iter().product::<usize>() * larger,
            Entry::Host(_) | Entry::Tag(_) => 0,
        };
        let carried: usize = sent.iter().map(|(.., payload)| payload.bytes()).sum();
        prop_assert_eq!(carried, entries.iter().map(bytes).sum::<usize>());
    }

    #[test]
    fn gradients_come_back_in_the_pieces_that_went(
        sizes in sizes(), entries in entries(), compared in any::<bool>(),
        present in proptest::collection::vec(any::<bool>(), 6)
    ) {
        let larger = sizes[0].max(sizes[1]);
        // The first group's gradients of the second one's values: here equal to the values.
        let gradients = |member, members| -> Gradients {
            let value = held(&entries, larger, member, members);
            value.tensors().zip(&present).map(|(tensor, there)| there.then(|| tensor.clone())).collect()
        };
        let sent = messages(sizes, compared, |member| {
            let cuts = cuts(&held(&entries, larger, member, sizes[0]));
            (gradients(member, sizes[0]).into_payload(), Some(cuts))
        });
        for member in 0..sizes[1] {
            let got = unmarked(joined(sizes, sizes[0] + member, &sent));
            prop_assert_eq!(content(&got), content(&gradients(member, sizes[1]).into_payload()));
        }
    }
}

fn piece(shape: &[usize], axis: usize, ranks: usize) -> Payload {
    let mut payload = Payload::default();
    payload.push_tag(CutOver { axis, ranks }.tag());
    payload.push_tensor(numbered(0, shape));
    payload
}

#[test]
fn a_piece_that_cannot_be_re_cut_is_refused_with_both_shapes() {
    let cut = |from: usize, to: usize, payload: Payload| {
        let grid = Grid::new(0, 1, [from, to].into());
        Recut::between(&grid, 0, 1).messages(0, payload, None, false).unwrap_err()
    };
    let error = cut(2, 4, piece(&[2, 3], 1, 2));
    assert!(matches!(error, StageError::CutUnevenly { ranks: 4, .. }), "{error}");
    let error = error.to_string();
    assert!(error.contains("float F32 [2, 3], a piece of [2, 6] cut along axis 1 over 2 rank(s)"), "{error}");
    // A piece that was made with another group than the stage's own.
    let error = cut(4, 2, piece(&[2, 3], 1, 1));
    assert!(matches!(error, StageError::CutOtherwise { ranks: 4, .. }), "{error}");
    assert!(matches!(cut(2, 4, piece(&[2, 3], 2, 2)), StageError::CutUnevenly { .. }));
}

#[test]
fn messages_that_are_not_of_one_value_are_refused_with_the_ranks_that_sent_them() {
    let join = |others: [Payload; 2]| {
        let grid = Grid::new(3, 1, [3, 1].into());
        let messages = std::iter::once(piece(&[2, 1], 1, 3)).chain(others).collect();
        Recut::between(&grid, 0, 1).join(grid.counterparts(0), messages).map_err(|error| error.to_string())
    };
    let fits = || piece(&[2, 1], 1, 3);
    assert_eq!(join([fits(), fits()]).unwrap().tensors().next().unwrap().shape().to_vec(), [2, 3]);
    let mut longer = fits();
    longer.push_tag(0);
    for (other, words) in [
        (Payload::default(), "nothing"),
        (piece(&[1, 1], 1, 3), "float F32 [1, 1]"),
        (piece(&[2, 1], 0, 3), "a piece that is cut along axis 1 over 3 rank(s), and a piece that is cut along axis 0"),
        (longer, "nothing more, and tag 0"),
    ] {
        let error = join([fits(), other]).unwrap_err();
        assert!(
            error.contains("ranks 0 and 2 are members of the tensor-parallel group at the other end")
                && error.contains(words),
            "{error}"
        );
    }
}

#[test]
fn what_is_not_equal_on_all_members_is_refused_where_it_is_compared() {
    let joined = |compared: bool, odd: usize| {
        let grid = Grid::new(4, 1, [4, 1].into());
        let whole = |member: usize| PayloadPart::Tensor(numbered(usize::from(member == odd), &[2, 3]));
        let recut = Recut::between(&grid, 0, 1);
        let message = |member| {
            let value = Payload::from_parts([whole(member)]);
            recut.messages(member, value, None, compared).unwrap().remove(0)
        };
        recut.join(0..4, (0..4).map(message).collect()).map(|value| elements(value.tensors().next().unwrap()))
    };
    assert_eq!(joined(true, 4).unwrap(), [0, 1, 2, 3, 4, 5]);
    assert_eq!(joined(false, 2).unwrap(), [0, 1, 2, 3, 4, 5]);
    for odd in 1..4 {
        let error = joined(true, odd).unwrap_err();
        assert!(matches!(error, StageError::MembersUnlike { first: 0, other, .. } if other == odd), "{error}");
        assert!(error.to_string().contains("float F32 [2, 3], which is whole on both of them"), "{error}");
    }
}
