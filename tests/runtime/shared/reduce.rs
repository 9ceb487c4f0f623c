//! The sum over some ranks is right, and bitwise equal on all of them.

use burn::tensor::{Device, Tensor};
use burn_pipeline::link::{Link, LinkError, ThreadLink, Threads};
use burn_pipeline::stage::AnyTensor;
use proptest::prelude::{ProptestConfig, Strategy};
use proptest::{prop_assert_eq, proptest};
use std::time::{Duration, Instant};

fn one(number: f32) -> AnyTensor {
    AnyTensor::new(Tensor::<1>::from_floats([number, number / 3.0], &Device::flex()))
}

/// A group, and for each rank whether it has a value to add.
type Group = (Vec<usize>, Vec<bool>);

fn groups() -> impl Strategy<Value = Vec<Group>> {
    let ranks = proptest::collection::btree_set(0usize..5, 1..=5).prop_map(|ranks| ranks.into_iter().collect());
    proptest::collection::vec((ranks, proptest::collection::vec(proptest::bool::ANY, 5)), 1..6)
}

/// The results of one rank after all groups were reduced: the first element of each of its groups' sums.
fn run(rank: usize, link: &mut ThreadLink, groups: &[Group]) -> Vec<Option<f32>> {
    let deadline = Instant::now() + Duration::from_secs(20);
    let lists: Vec<Vec<usize>> = groups.iter().map(|(ranks, _)| ranks.clone()).collect();
    link.form_groups(&lists, deadline).unwrap();
    let mut sums = Vec::new();
    for (number, (ranks, gives)) in groups.iter().enumerate().filter(|(_, (ranks, _))| ranks.contains(&rank)) {
        let tensors = vec![gives[rank].then(|| one(0.1 * (rank + 1) as f32))];
        let sum = link.all_reduce(number, ranks, tensors, deadline).unwrap().swap_remove(0);
        sums.push(sum.map(|sum| sum.to_data().unwrap().iter::<f32>().next().unwrap()));
    }
    sums
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn overlapping_groups_are_summed_in_rank_order(groups in groups()) {
        let link = Threads::new(5);
        let threads: Vec<_> = (0..5)
            .map(|rank| {
                let (mut link, groups) = (link.link(rank, Device::flex()), groups.clone());
                std::thread::spawn(move || run(rank, &mut link, &groups))
            })
            .collect();
        let sums: Vec<Vec<Option<f32>>> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        for (rank, sums) in sums.into_iter().enumerate() {
            let mine = groups.iter().filter(|(ranks, _)| ranks.contains(&rank));
            let expected: Vec<Option<f32>> = mine
                .map(|(ranks, gives)| {
                    ranks.iter().filter(|&&r| gives[r]).map(|&r| 0.1 * (r + 1) as f32).reduce(|a, b| a + b)
                })
                .collect();
            prop_assert_eq!(sums, expected);
        }
    }
}

#[test]
fn lists_that_do_not_fit_each_other_are_refused_with_both_ranks() {
    let threads = Threads::new(2);
    let deadline = || Instant::now() + Duration::from_secs(5);
    let other = threads.link(1, Device::flex());
    let peer = std::thread::spawn(move || {
        let mut other = other;
        let error = other.all_reduce(0, &[0, 1], vec![Some(one(1.0)), None], deadline());
        drop(error);
    });
    let mut link = threads.link(0, Device::flex());
    let error = link.all_reduce(0, &[0, 1], vec![Some(one(1.0))], deadline()).unwrap_err();
    assert!(matches!(&error, LinkError::Lists { rank: 0, peer: 1, .. }), "{error}");
    link.abort(error.to_string());
    peer.join().unwrap();
}
