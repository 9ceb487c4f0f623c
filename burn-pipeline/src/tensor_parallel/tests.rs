//! Compares each function with one device's computation on all members' tensors, forward and backward, over random
//! shapes.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod refusals;

use super::{Holders, TensorGroup};
use crate::link::{Activity, Link, LinkError, SharedLink, on_threads};
use burn::tensor::{DType, Device, FloatDType, Int, Tensor, TensorData};
use proptest::prelude::{ProptestConfig, proptest};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// Runs `body` for each member on its own thread; a panic becomes the link error in its payload.
fn members<T: Send>(size: usize, body: impl Fn(&TensorGroup) -> T + Sync) -> Vec<Result<T, LinkError>> {
    on_threads(size, |member, mut link| {
        let group = TensorGroup::new(member, 0..size, link.stage_end(), Duration::from_secs(2));
        caught(&mut link, || body(&group))
    })
}

/// Runs a rank's code; a panic becomes the link error in its payload, which ends the other ranks' waits.
fn caught<T>(link: &mut SharedLink, code: impl FnOnce() -> T) -> Result<T, LinkError> {
    catch_unwind(AssertUnwindSafe(code)).map_err(|panic| {
        let error = *panic.downcast::<LinkError>().unwrap();
        link.abort(error.to_string());
        error
    })
}

#[test]
fn the_time_of_a_slow_member_is_not_taken_from_the_next_one() {
    let timeout = Duration::from_secs(1);
    on_threads(3, |member, mut link| {
        let group = TensorGroup::new(member, 0..3, link.stage_end(), timeout);
        if member == 1 {
            link.set_activity(Activity::Loading);
        }
        // Member 0 waits for member 1 until its wait has been extended, and then for member 2.
        std::thread::sleep(timeout * [0, 14, 18][member] / 10);
        assert_eq!(group.all_gather(values([1, 1, 1], member), 0).dims(), [3, 1, 1]);
    });
}

/// Arbitrary values that depend on the seed.
fn values(dims: [usize; 3], seed: usize) -> Tensor<3> {
    let count = dims.iter().product::<usize>();
    let value = |i: usize| ((i * 37 + seed * 101 + 11) % 64) as f32 / 8.0 - 4.0;
    Tensor::from_data(TensorData::new((0..count).map(value).collect::<Vec<f32>>(), dims), &Device::flex().autodiff())
}

fn piece(tensor: &Tensor<3>, axis: usize, member: usize, size: usize) -> Tensor<3> {
    let each = tensor.dims()[axis] / size;
    tensor.clone().narrow(axis, member * each, each)
}

/// A function's name, the function, its expected result on a member from all inputs, and the expected gradient of a
/// member's input from the gradients of all outputs.
type Case = (
    &'static str,
    fn(&TensorGroup, Tensor<3>, usize) -> Tensor<3>,
    fn(&[Tensor<3>], usize, usize) -> Tensor<3>,
    fn(&[Tensor<3>], usize, usize) -> Tensor<3>,
);

fn sum(all: &[Tensor<3>]) -> Tensor<3> {
    all[1..].iter().fold(all[0].clone(), |sum, one| sum + one.clone())
}

fn own(all: &[Tensor<3>], _: usize, member: usize) -> Tensor<3> {
    all[member].clone()
}

fn total(all: &[Tensor<3>], _: usize, _: usize) -> Tensor<3> {
    sum(all)
}

fn joined(all: &[Tensor<3>], axis: usize, _: usize) -> Tensor<3> {
    Tensor::cat(all.to_vec(), axis)
}

fn own_piece(all: &[Tensor<3>], axis: usize, member: usize) -> Tensor<3> {
    piece(&all[member], axis, member, all.len())
}

fn piece_of_sum(all: &[Tensor<3>], axis: usize, member: usize) -> Tensor<3> {
    piece(&sum(all), axis, member, all.len())
}

fn of_last(all: &[Tensor<3>], _: usize, _: usize) -> Tensor<3> {
    all[all.len() - 1].clone()
}

fn total_on_last(all: &[Tensor<3>], _: usize, member: usize) -> Tensor<3> {
    if member + 1 == all.len() { sum(all) } else { all[member].zeros_like() }
}

fn exchanged(all: &[Tensor<3>], axis: usize, member: usize) -> Tensor<3> {
    Tensor::cat(all.iter().map(|one| piece(one, axis, member, all.len())).collect(), axis)
}

const CASES: [Case; 8] = [
    ("copy_to", |group, x, _| group.copy_to(x), own, total),
    ("reduce_from", |group, x, _| group.reduce_from(x), total, own),
    ("scatter_to", |group, x, axis| group.scatter_to(x, axis), own_piece, joined),
    ("gather_from", |group, x, axis| group.gather_from(x, axis), joined, own_piece),
    ("all_gather", |group, x, axis| group.all_gather(x, axis), joined, piece_of_sum),
    ("reduce_scatter", |group, x, axis| group.reduce_scatter(x, axis), piece_of_sum, joined),
    ("all_to_all", |group, x, axis| group.all_to_all(x, axis), exchanged, exchanged),
    ("broadcast", |group, x, _| group.broadcast(x, group.size() - 1), of_last, total_on_last),
];

fn equal(got: TensorData, expected: Tensor<3>, place: &str) {
    // Values are small multiples of 1/8, so every sum is exact.
    assert_eq!(got, expected.into_data(), "{place}");
}

#[test]
fn half_precision_is_added_in_f32_and_rounded_once() {
    // In bf16 256 + 1 is 256, and in f16 2048 + 1 is 2048; the sum of four is exact up to its one rounding.
    for (half, large) in [(DType::BF16, 256.0), (DType::F16, 2048.0)] {
        let of = |member: usize, dims: [usize; 3], dtype: DType| {
            let value = if member == 0 { large } else { 1.0 };
            Tensor::<3>::full(dims, value, (&Device::flex().autodiff(), dtype))
        };
        for (name, run, forward, backward) in CASES {
            let got = members(4, |group| {
                let x = of(group.member(), [4; 3], half).require_grad();
                let y = run(group, x.clone(), 1);
                let gradients = (y.clone() * of(group.member(), y.dims(), half)).sum().backward();
                (y.into_data(), x.grad(&gradients).unwrap().into_data())
            });
            let inputs: Vec<Tensor<3>> = (0..4).map(|member| of(member, [4; 3], DType::F32)).collect();
            let gradient = |member| of(member, forward(&inputs, 1, member).dims(), DType::F32);
            let gradients: Vec<Tensor<3>> = (0..4).map(gradient).collect();
            for (member, got) in got.into_iter().enumerate() {
                let rounded = |wide: Tensor<3>| wide.cast(FloatDType::from(half)).into_data();
                let expected = (rounded(forward(&inputs, 1, member)), rounded(backward(&gradients, 1, member)));
                assert!(got.unwrap() == expected, "{name} in {half:?}, member {member}");
            }
        }
    }
}

fn check((name, run, forward, backward): Case, size: usize, axis: usize, dims: [usize; 3]) {
    let got = members(size, |group| {
        let x = values(dims, group.member()).require_grad();
        let y = run(group, x.clone(), axis);
        let gradient = values(y.dims(), 50 + group.member());
        let gradients = (y.clone() * gradient).sum().backward();
        (y.into_data(), x.grad(&gradients).unwrap().into_data())
    });
    let inputs: Vec<Tensor<3>> = (0..size).map(|member| values(dims, member)).collect();
    let gradient = |member| values(forward(&inputs, axis, member).dims(), 50 + member);
    let gradients: Vec<Tensor<3>> = (0..size).map(gradient).collect();
    for (member, got) in got.into_iter().enumerate() {
        let (y, dx) = got.unwrap();
        let place = format!("{name} along axis {axis} of {dims:?}, member {member} of {size}");
        equal(y, forward(&inputs, axis, member), &format!("{place}, forward"));
        equal(dx, backward(&gradients, axis, member), &format!("{place}, backward"));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn collectives_and_their_backwards_are_what_one_device_computes(
        size in 1usize..5, axis in 0usize..3, sides in [1usize..4, 1usize..4, 1usize..4]
    ) {
        let mut dims = sides;
        dims[axis] *= size;
        CASES.into_iter().for_each(|case| check(case, size, axis, dims));
    }
}

/// Arbitrary rows that depend on the seed.
fn rows(count: usize, width: usize, seed: usize) -> Tensor<2> {
    values([count, width, 1], seed).reshape([count, width])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn rows_and_their_gradients_come_from_where_they_were_sent(
        size in 1usize..5, width in 1usize..4, table in proptest::collection::vec(0usize..4, 16)
    ) {
        // The number of rows that one member sends another.
        let count = |from: usize, to: usize| table[4 * from + to];
        let sent = |member: usize| (0..size).map(|to| count(member, to)).collect::<Vec<_>>();
        let total = |counts: &[usize]| counts.iter().sum::<usize>();
        let with_zeros = |rows: Vec<Tensor<2>>| Tensor::cat([rows, vec![rows_of_zeros(width)]].concat(), 0);
        let input = |member: usize| match total(&sent(member)) {
            0 => rows_of_zeros(width),
            rows_sent => with_zeros(vec![rows(rows_sent, width, member)]),
        };
        let gradient = |member: usize| {
            rows((0..size).map(|from| count(from, member)).sum::<usize>() + 1, width, 50 + member)
        };
        let got = members(size, |group| {
            let own = sent(group.member()).iter().map(|&n| n as i32).collect::<Vec<_>>();
            let own = Tensor::<1, Int>::from_ints(&*own, &Device::flex());
            let all = group.all_counts(own);
            let received: Vec<usize> = all.iter().map(|counts| counts[group.member()]).collect();
            let x = input(group.member()).require_grad();
            let y = group.all_to_all_rows(x.clone(), &all[group.member()], &received);
            let gradients = (y.clone() * gradient(group.member())).sum().backward();
            (y.into_data(), x.grad(&gradients).unwrap().into_data())
        });
        // One member's rows of a tensor, given the number for each.
        let part = |tensor: Tensor<2>, counts: &[usize], of: usize| {
            (counts[of] > 0).then(|| tensor.narrow(0, total(&counts[..of]), counts[of]))
        };
        for (member, got) in got.into_iter().enumerate() {
            let (y, dx) = got.unwrap();
            let came = (0..size).filter_map(|from| part(input(from), &sent(from), member)).collect();
            let back = (0..size).filter_map(|to| {
                let received: Vec<usize> = (0..size).map(|from| count(from, to)).collect();
                part(gradient(to), &received, member)
            });
            assert_eq!(y, with_zeros(came).into_data(), "member {member} of {size}, forward");
            if size > 1 {
                assert_eq!(dx, with_zeros(back.collect()).into_data(), "member {member} of {size}, backward");
            }
        }
    }
}

fn rows_of_zeros(width: usize) -> Tensor<2> {
    Tensor::zeros([1, width], &Device::flex().autodiff())
}

#[test]
fn a_member_that_sends_other_rows_than_it_said_is_named() {
    let got = members(2, |group| {
        let sent = [1 + group.member(), 1];
        let x = rows(sent.iter().sum::<usize>() + 1, 2, 0);
        drop(group.all_to_all_rows(x, &sent, &[1, 1]));
    });
    let said = got[0].as_ref().unwrap_err().to_string();
    assert!(said.contains("all-to-all of rows of 2 F32") && said.contains("sent 2"), "{said}");
}

#[test]
fn a_broadcast_runs_backward_on_all_members_whosever_tensor_is_tracked() {
    let (size, dims) = (3, [2, 3, 2]);
    for tracked in [[true, false, false], [false, true, false], [true, false, true], [false, true, true], [false; 3]] {
        let got = members(size, |group| {
            let x = values(dims, group.member());
            let x = if tracked[group.member()] { x.require_grad() } else { x };
            let y = group.broadcast(x.clone(), 1);
            let gradients = (y.clone() * values(dims, 50 + group.member())).sum().backward();
            (y.into_data(), x.grad(&gradients).map(Tensor::into_data))
        });
        let gradients: Vec<Tensor<3>> = (0..size).map(|member| values(dims, 50 + member)).collect();
        for (member, got) in got.into_iter().enumerate() {
            let (y, dx) = got.unwrap();
            let place = format!("{tracked:?}, member {member}");
            equal(y, values(dims, 1), &place);
            assert_eq!(dx.is_some(), tracked[member], "{place}");
            let expected = if member == 1 { sum(&gradients) } else { gradients[0].zeros_like() };
            dx.into_iter().for_each(|dx| equal(dx, expected.clone(), &place));
        }
    }
}

#[test]
fn pieces_are_cut_from_the_first_members_values_and_make_them_whole_again() {
    use burn::module::Param;
    for axis in 0..2 {
        let whole = |seed| values([4, 6, 1], seed).inner().reshape::<2, _>([4, 6]);
        let got = members(2, |group| {
            let parameter = Param::from_tensor(Tensor::<2>::from_inner(whole(group.member())).require_grad());
            let piece = group.cut(parameter, axis);
            assert!(piece.val().is_require_grad());
            assert_eq!(group.axis_of(piece.id), Some(axis));
            let own = crate::payload::AnyTensor::new(piece.val().inner());
            (piece.val().into_data(), group.whole(piece.id, own).to_data().unwrap())
        });
        for (member, got) in got.into_iter().enumerate() {
            let (piece, joined) = got.unwrap();
            let each = whole(0).dims()[axis] / 2;
            assert_eq!(piece, whole(0).narrow(axis, member * each, each).into_data(), "axis {axis}");
            assert_eq!(joined, whole(0).into_data(), "axis {axis}");
        }
    }
}

#[test]
fn a_norm_counts_every_replicas_piece_and_of_copies_the_first() {
    use burn::module::Param;
    let counted = |is_cut: bool| -> Vec<bool> {
        let got = members(2, |replicas| {
            let parameter = Param::from_tensor(values([4, 6, 1], 0));
            let id = if is_cut { replicas.cut(parameter, 0).id } else { parameter.id };
            Holders::new(&TensorGroup::alone(), replicas).counts(id, false)
        });
        got.into_iter().map(Result::unwrap).collect()
    };
    assert_eq!(counted(true), [true, true]);
    assert_eq!(counted(false), [true, false]);
}

#[test]
fn one_collective_over_members_and_over_replicas_has_two_names() {
    use super::collective::{Collective, GroupOp};
    use crate::program::CapturedOp;
    // A program has one operation for each name: with one name, a stage that uses both would run one of them twice.
    let got = members(2, |group| {
        let replicas = group.clone().of_replicas();
        [group.clone(), replicas].map(|group| {
            let op = GroupOp::new(group, Collective::AllReduce);
            (op.name(), op.is_among_replicas())
        })
    });
    let expected = [("all-reduce over 2 ranks".to_owned(), false), ("all-reduce over 2 replicas".to_owned(), true)];
    got.into_iter().for_each(|got| assert_eq!(got.unwrap(), expected));
}
