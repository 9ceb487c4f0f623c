//! Tensor-parallel groups with NCCL's own collectives.

#[allow(dead_code, reason = "the tests of groups use all of it")]
#[path = "../../tensor/model.rs"]
mod model;
#[allow(dead_code, reason = "as above")]
#[path = "../../tensor/plain.rs"]
mod plain;

use super::links::ORDERINGS;
use super::messages::{calls, on};
use super::start;
use crate::{TIMEOUT, link};
use burn_pipeline::Builder;
use burn_pipeline::link::{FlatCollective, Link, LinkError};
use burn_pipeline::payload::AnyTensor;
use burn_pipeline::stage::SplitBackward;
use model::{Grid, batch, builder_of, weights};
use pipeline_tests::on_device::OnDevice;
use plain::{Config, SEQUENCE, SMALL};
use std::time::Instant;

/// Runs the named part of a rank's process. Returns false if the name is not one of these.
pub(super) fn part(name: &str) -> bool {
    match name {
        "own collectives" => own_collectives(),
        "elsewhere" => elsewhere(),
        "tensor groups" => tensor_groups(),
        _ => return false,
    }
    true
}

/// This rank's group: `MEMBERS` consecutive ranks, or the remaining ones.
fn group(link: &dyn Link) -> Vec<usize> {
    let members: usize = std::env::var("MEMBERS").unwrap().parse().unwrap();
    let first = link.rank() / members * members;
    (first..link.ranks().min(first + members)).collect()
}

/// Elements whose sums are exact.
fn of(rank: usize, length: usize) -> Vec<f32> {
    (0..length).map(|place| ((rank + 1) * 1000 + place % 997) as f32).collect()
}

fn own_collectives() {
    let (mut link, device) = link();
    let (me, deadline) = (link.rank(), Instant::now() + TIMEOUT);
    let members = group(&link);
    let collectives = link.collectives().unwrap();
    collectives.form(&members, deadline).unwrap();
    let (size, root) = (members.len(), members.len() - 1);
    if size == 1 {
        return;
    }
    let each_sizes = [1, 5, 50_000];
    for each in each_sizes {
        let length = size * each;
        let all: Vec<Vec<f32>> = members.iter().map(|&rank| of(rank, length)).collect();
        let sums: Vec<f32> = (0..length).map(|place| all.iter().map(|values| values[place]).sum()).collect();
        let place = members.iter().position(|&rank| rank == me).unwrap();
        let own = place * each..(place + 1) * each;
        let expected = [
            (FlatCollective::AllReduce, sums.clone()),
            (FlatCollective::AllGather, all.concat()),
            (FlatCollective::ReduceScatter, sums[own.clone()].to_vec()),
            (FlatCollective::AllToAll, all.iter().flat_map(|values| values[own.clone()].to_vec()).collect()),
            (FlatCollective::Broadcast { root }, all[root].clone()),
            (FlatCollective::Reduce { root }, sums),
        ];
        // All of them are in flight at once.
        for (collective, _) in &expected {
            let tensor = AnyTensor::new(on(&device, of(me, length)));
            collectives.begin(*collective, format!("{collective:?}"), tensor).unwrap();
        }
        for (collective, expected) in expected {
            let got = collectives.end(deadline).unwrap().to_data().unwrap();
            let got: Vec<f32> = got.iter::<f32>().collect();
            // The other members of a reduce receive unspecified values.
            if collective != (FlatCollective::Reduce { root }) || place == root {
                assert!(got == expected, "{collective:?} of {length}: {:?}, {:?}", &got[..1], &expected[..1]);
            }
        }
        collectives.meet(format!("after {each}"), deadline).unwrap();
    }
    for name in ["all-reduce", "all-gather", "reduce-scatter", "broadcast", "reduce"] {
        assert_eq!(calls(name), each_sizes.len(), "{name}");
    }
}

#[test]
fn nccl_runs_the_collectives_of_groups() {
    for (ranks, members) in [(2, "2"), (4, "2"), (4, "3"), (4, "4")] {
        for ordering in ORDERINGS {
            start(ranks, "own collectives", &[("ORDERING", ordering), ("MEMBERS", members)]).all_pass();
        }
    }
}

/// The last member is at the end of its row, the others are in a sum.
fn elsewhere() {
    let (mut link, device) = link();
    let (me, deadline, began) = (link.rank(), Instant::now() + TIMEOUT, Instant::now());
    let members = group(&link);
    let collectives = link.collectives().unwrap();
    collectives.form(&members, deadline).unwrap();
    let last = members[members.len() - 1];
    let error = if me == last {
        collectives.meet("the end of its row".to_owned(), deadline).unwrap_err()
    } else {
        let tensor = AnyTensor::new(on(&device, of(me, 64)));
        collectives.begin(FlatCollective::AllReduce, "1F0, all-reduce".to_owned(), tensor).unwrap();
        collectives.end(deadline).map(drop).unwrap_err()
    };
    let (own, other) = ("1F0, all-reduce".to_owned(), "the end of its row".to_owned());
    let expected = match me == last {
        true => LinkError::Members { rank: me, peer: members[0], ours: other, theirs: own },
        false => LinkError::Members { rank: me, peer: last, ours: own, theirs: other },
    };
    assert_eq!(error, expected);
    assert!(began.elapsed() < TIMEOUT / 4, "{:?}", began.elapsed());
    // Nobody has launched anything.
    assert_eq!(calls("all-reduce"), 0);
}

#[test]
fn members_at_other_places_of_their_row_are_named_at_once() {
    for (ranks, members) in [(2, "2"), (4, "2"), (4, "4")] {
        start(ranks, "elsewhere", &[("MEMBERS", members)]).all_pass();
    }
}

/// A decoder over NCCL, compared with the same one over threads.
fn trains_as_threads_do(config: Config, split: SplitBackward, grid: Grid) {
    let builder = || -> Builder { builder_of(config, ("1F1B", 1), grid).split(split).clip_norm(0.1).timeout(TIMEOUT) };
    let (link, device) = link();
    let mut over_nccl = builder().build_rank(Box::new(OnDevice::flat(link, device))).unwrap();
    let mut over_threads = builder().build().unwrap();
    let got = over_nccl.step(batch(&config, 8), 0.5).unwrap();
    let expected = over_threads.step(batch(&config, 8), 0.5).unwrap();
    let numbers = [(got.loss, got.gradient_norm), (expected.loss, expected.gradient_norm)];
    assert_eq!(numbers[0], numbers[1], "{grid:?}, {split:?}");
    assert!(weights(&mut over_nccl) == weights(&mut over_threads), "{grid:?}, {split:?}: other weights");
}

fn tensor_groups() {
    let ranks: usize = std::env::var("WORLD_SIZE").unwrap().parse().unwrap();
    let grids: &[Grid] = if ranks == 2 { &[(1, 1, 2)] } else { &[(2, 1, 2), (1, 1, 4)] };
    for &grid in grids {
        for split in [SplitBackward::Eager, SplitBackward::Captured] {
            trains_as_threads_do(Config { blocks: 2, ..SMALL }, split, grid);
        }
    }
    let (sums, parts) = (calls("all-reduce"), calls("all-gather") + calls("reduce-scatter"));
    let cut = [SplitBackward::Eager, SplitBackward::Captured];
    cut.into_iter().for_each(|split| trains_as_threads_do(Config { blocks: 2, ..SEQUENCE }, split, (ranks / 2, 1, 2)));
    let more = calls("all-gather") + calls("reduce-scatter") - parts;
    // Each block has two sums, one in the forward and one in the backward.
    let own = std::env::var("ORDERED_SUMS").is_err();
    assert!(if own { sums > 50 && more > 50 } else { sums + more == 0 }, "{sums} sums, {more} of pieces");
}

#[test]
fn groups_train_with_the_bits_of_threads_by_collectives_of_nccl() {
    std::thread::scope(|scope| {
        for (ranks, ordering) in [(2, "host"), (2, "device"), (4, "host")] {
            scope.spawn(move || start(ranks, "tensor groups", &[("ORDERING", ordering)]).all_pass());
        }
    });
}

/// With messages, so without NCCL's collectives.
#[test]
fn groups_train_with_ordered_sums_too() {
    start(2, "tensor groups", &[("ORDERED_SUMS", "1")]).all_pass();
}
