//! Every rank has its own position, and groups of different sizes meet evenly.

use super::Grid;
use crate::ranks::GroupSizes;
use proptest::prelude::Strategy;
use proptest::{prop_assert, prop_assert_eq, proptest};
use std::collections::{BTreeMap, BTreeSet};

#[test]
fn ranks_are_numbered_replica_by_replica_within_a_pipeline_rank() {
    let grid = Grid::new(3, 2, 1.into());
    assert_eq!((grid.pipeline_rank(), grid.replica()), (1, 1));
    assert_eq!((0..3).map(|rank| grid.rank_of(rank)).collect::<Vec<_>>(), [1, 3, 5]);
    assert_eq!(grid.replica_ranks().collect::<Vec<_>>(), [2, 3]);
}

#[test]
fn the_members_of_a_group_are_neighbours() {
    // Megatron-Core's example of 16 ranks, `tp2-dp2-pp4` in the order of its `RankGenerator`.
    let grid = Grid::new(6, 2, 2.into());
    assert_eq!((grid.pipeline_rank(), grid.replica(), grid.member()), (1, 1, 0));
    assert_eq!(grid.member_ranks(), 6..8);
    assert_eq!(grid.replica_ranks().collect::<Vec<_>>(), [4, 6]);
    assert_eq!((0..4).map(|rank| grid.rank_of(rank)).collect::<Vec<_>>(), [2, 6, 10, 14]);
}

#[test]
fn groups_of_different_sizes_follow_each_other() {
    // Two replicas of groups of 1, 2 and 4: ranks 0 and 1; 2 to 5; 6 to 13.
    let place = |rank: usize| {
        let grid = Grid::new(rank, 2, [1, 2, 4].into());
        (grid.pipeline_rank(), grid.replica(), grid.member())
    };
    assert_eq!([0, 1, 2, 3, 4, 5].map(place), [(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 0, 1), (1, 1, 0), (1, 1, 1)]);
    assert_eq!([6, 9, 10, 13].map(place), [(2, 0, 0), (2, 0, 3), (2, 1, 0), (2, 1, 3)]);
    let grid = Grid::new(5, 2, [1, 2, 4].into());
    assert_eq!([0, 1, 2].map(|peer| grid.counterparts(peer)), [1..2, 5..6, 12..14]);
    assert_eq!(grid.replica_ranks().collect::<Vec<_>>(), [3, 5]);
}

/// Group sizes of some pipeline ranks, one of which divides the other in each pair.
fn sizes() -> impl Strategy<Value = Vec<usize>> {
    let powers = proptest::collection::vec((0u32..4).prop_map(|power| 2usize.pow(power)), 1..5);
    let with_ones = proptest::collection::vec(proptest::bool::ANY.prop_map(|three| if three { 3 } else { 1 }), 1..5);
    proptest::prop_oneof![powers, with_ones]
}

proptest! {
    #[test]
    fn every_rank_has_one_place(sizes in sizes(), replicas in 1usize..6) {
        let (pipeline, all) = (sizes.len(), sizes.iter().sum::<usize>() * replicas);
        let grid = |rank| Grid::new(rank, replicas, sizes.clone().into());
        let mut seen = BTreeSet::new();
        for grid in (0..all).map(grid) {
            let (pipeline_rank, replica, member) = (grid.pipeline_rank(), grid.replica(), grid.member());
            // Positions have the order of ranks.
            prop_assert!(seen.last().is_none_or(|last| *last < (pipeline_rank, replica, member)));
            prop_assert!(seen.insert((pipeline_rank, replica, member)));
            prop_assert!(pipeline_rank < pipeline && replica < replicas && member < sizes[pipeline_rank]);
            prop_assert_eq!(grid.rank_of(pipeline_rank), grid.rank);
            prop_assert_eq!(grid.counterparts(pipeline_rank), grid.rank..grid.rank + 1);
            prop_assert_eq!(grid.member_ranks().nth(member), Some(grid.rank));
            prop_assert_eq!(grid.replica_ranks().nth(replica), Some(grid.rank));
            for rank in grid.member_ranks() {
                let other = Grid::new(rank, replicas, sizes.clone().into());
                prop_assert_eq!((other.pipeline_rank(), other.replica()), (pipeline_rank, replica));
            }
            for replica in 0..replicas {
                let there = Grid::new(grid.rank_at(pipeline - 1, replica, member), replicas, sizes.clone().into());
                let place = (there.pipeline_rank(), there.replica(), there.member());
                prop_assert_eq!(place, (pipeline - 1, replica, member.min(sizes[pipeline - 1] - 1)));
            }
        }
    }

    #[test]
    fn each_rank_of_a_smaller_group_measures_a_link_with_one_of_a_larger(sizes in sizes(), replicas in 1usize..4) {
        let grid = |rank| Grid::new(rank, replicas, sizes.clone().into());
        let all = sizes.iter().sum::<usize>() * replicas;
        for (a, b) in (1..sizes.len()).map(|b| (b - 1, b)) {
            let of = |one, other: usize| {
                let of_one = (0..all).map(grid).filter(move |grid| grid.pipeline_rank() == one);
                of_one.filter_map(move |grid| Some((grid.rank, grid.partner(other)?)))
            };
            let forth: BTreeSet<_> = of(a, b).collect();
            let back: BTreeSet<_> = of(b, a).map(|(b, a)| (a, b)).collect();
            prop_assert_eq!(&forth, &back);
            prop_assert_eq!(forth.len(), sizes[a].min(sizes[b]) * replicas);
        }
    }

    #[test]
    fn ranks_of_one_size_are_numbered_as_one_formula_says(
        pipeline in 1usize..6, replicas in 1usize..6, members in 1usize..5
    ) {
        for rank in 0..pipeline * replicas * members {
            for sizes in [GroupSizes::from(members), vec![members; pipeline].into()] {
                let grid = Grid::new(rank, replicas, sizes);
                let (p, r, m) = (rank / members / replicas, rank / members % replicas, rank % members);
                prop_assert_eq!((grid.pipeline_rank(), grid.replica(), grid.member()), (p, r, m));
                let other = |peer: usize| (peer * replicas + r) * members + m;
                for peer in 0..pipeline {
                    prop_assert_eq!(grid.counterparts(peer), other(peer)..other(peer) + 1);
                    prop_assert_eq!(grid.rank_of(peer), other(peer));
                }
            }
        }
    }

    #[test]
    fn counterparts_are_mutual_of_one_replica_and_evenly_shared(sizes in sizes(), replicas in 1usize..4) {
        let all = sizes.iter().sum::<usize>() * replicas;
        let grid = |rank| Grid::new(rank, replicas, sizes.clone().into());
        for (peer, &size) in sizes.iter().enumerate() {
            let mut met: BTreeMap<(usize, usize), usize> = BTreeMap::new();
            for grid in (0..all).map(grid) {
                let there = grid.counterparts(peer);
                prop_assert_eq!(there.len(), (size / sizes[grid.pipeline_rank()]).max(1));
                for rank in there {
                    let other = Grid::new(rank, replicas, sizes.clone().into());
                    prop_assert_eq!((other.pipeline_rank(), other.replica()), (peer, grid.replica()));
                    prop_assert!(other.counterparts(grid.pipeline_rank()).contains(&grid.rank));
                    *met.entry((grid.pipeline_rank(), rank)).or_default() += 1;
                }
            }
            // Each rank of the other group has as many counterparts as the larger group has for each rank of the
            // smaller.
            for ((pipeline_rank, _), times) in met {
                prop_assert_eq!(times, (sizes[pipeline_rank] / size).max(1));
            }
        }
    }

    #[test]
    fn shares_are_the_whole_batch_and_differ_by_at_most_one(microbatches in 0usize..40, replicas in 1usize..9) {
        let shares = Grid::shares(microbatches, replicas);
        let mut next = 0;
        for &(first, count) in &shares {
            prop_assert_eq!(first, next);
            next += count;
        }
        prop_assert_eq!(next, microbatches);
        let counts = || shares.iter().map(|(_, count)| *count);
        prop_assert!(counts().max().unwrap() - counts().min().unwrap() <= 1);
    }
}
