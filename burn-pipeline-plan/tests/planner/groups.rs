//! Tensor-parallel groups of different sizes, chosen by the planner.

use burn_pipeline_plan::cost::{Dtype, Layer, Layers, LinkCost, LinkCosts, Partition};
use burn_pipeline_plan::planner::{Request, Workload, best_plan};
use burn_pipeline_plan::schedule::{OneFOneB, Schedule, Size};
use burn_pipeline_plan::simulate::simulate;
use proptest::prelude::*;

fn links() -> LinkCosts {
    LinkCosts { default: LinkCost { latency: 0.0, bandwidth: Some(1e3) }, between: Vec::new() }
}

/// Blocks of 3 s, which groups all-reduce almost for free, after a layer of this many seconds.
fn layers(blocks: usize, first: f64) -> Layers {
    layers_with(blocks, first, 1.0)
}

/// The same, with groups that all-reduce this many bytes.
fn layers_with(blocks: usize, first: f64, summed: f64) -> Layers {
    let layer = |seconds: f64| Layer {
        summed_bytes: Some(summed),
        output_bytes: 1.0,
        ..Layer::new('A').with_seconds(seconds, seconds, seconds)
    };
    Layers::new([vec![layer(first / 3.0)], vec![layer(1.0); blocks]].concat()).unwrap()
}

/// A request without full-effort syntheses.
fn request(layers: Layers, ranks: usize, microbatches: usize) -> Request {
    Request {
        synthesis: None,
        chunks: vec![1],
        ..Request::new(vec![Workload::new(microbatches, layers)], ranks, links())
    }
}

#[test]
fn a_heavy_layer_is_held_by_more_ranks_than_the_others() {
    // A layer of 6 s and two blocks of 3 s on four ranks, with 1 s of all-reduce for each layer of a pair: groups of
    // 2 + 1 + 1 ranks have 4, 3 and 3 s; pairs have 4 and 5.
    let request = Request { unpipelined: false, ..request(layers_with(2, 6.0, 500.0), 4, 8) };
    let report = best_plan(&request.with_tensor_groups(vec![2])).unwrap();
    let equal = report.candidates.iter().find(|candidate| candidate.groups.is_empty()).unwrap();
    assert_eq!((&report.best.groups, report.best.members), (&vec![2, 1, 1], 2), "{}", report.best);
    assert_eq!(report.plan.plan().ranks(), 3);
    assert!(report.best.seconds < 0.95 * equal.seconds, "{} and {}", report.best.seconds, equal.seconds);
    assert!(report.best.to_string().contains(", stages on 2+1+1 ranks"), "{}", report.best);
    assert!(report.bound <= report.best.seconds);
}

#[test]
fn a_frozen_layer_has_no_optimizer_state_in_a_group_of_another_size_either() {
    // A layer of 6 s that does not train, and two blocks, the first of which passes no gradient on, with 0.5 s for each
    // all-reduce of a pair: groups of 2 + 1 + 1 ranks have 3.5, 2 and 3 s. The layer fits unless its 100 bytes count
    // four times.
    let mut all = layers_with(2, 18.0, 500.0).all().to_vec();
    all[0] = all[0].clone().with_parameters(100, Dtype::I8);
    let frozen = Layers::new(all).unwrap().train_from(1).unwrap();
    let request = Request { unpipelined: false, cap: Some(80.0), state_factor: 4.0, ..request(frozen, 4, 8) };
    let report = best_plan(&request.with_tensor_groups(vec![2])).unwrap();
    assert!(report.candidates.iter().any(|candidate| candidate.groups == [2, 1, 1]), "{}", report.best);
}

#[test]
fn sizes_of_neighbours_divide_each_other() {
    let report = best_plan(&request(layers(3, 9.0), 6, 6).with_tensor_groups(vec![2, 3])).unwrap();
    let unequal: Vec<_> = report.candidates.iter().filter(|candidate| !candidate.groups.is_empty()).collect();
    assert!(!unequal.is_empty());
    for candidate in unequal {
        let pairs = candidate.groups.windows(2);
        assert!(
            pairs.into_iter().all(|pair| pair[0].is_multiple_of(pair[1]) || pair[1].is_multiple_of(pair[0])),
            "{candidate}"
        );
        assert_eq!(candidate.groups.iter().sum::<usize>(), 6, "{candidate}");
    }
}

/// All ways to write a number as a sum of sizes in which, of two neighbours, one divides the other.
fn compositions(ranks: usize, sizes: &[usize], last: Option<usize>) -> Vec<Vec<usize>> {
    if ranks == 0 {
        return vec![Vec::new()];
    }
    let fits =
        |size: usize| size <= ranks && last.is_none_or(|last| last.is_multiple_of(size) || size.is_multiple_of(last));
    let with = |&size: &usize| {
        let rest = compositions(ranks - size, sizes, Some(size)).into_iter();
        rest.map(move |rest| [vec![size], rest].concat())
    };
    sizes.iter().filter(|size| fits(**size)).flat_map(with).collect()
}

/// The least seconds of 1F1B over all group sizes and cuts.
fn by_brute_force(layers: &Layers, ranks: usize, microbatches: usize, sizes: &[usize]) -> f64 {
    let mut least = f64::INFINITY;
    for groups in compositions(ranks, sizes, None).into_iter().filter(|groups| groups.len() <= layers.len()) {
        for chosen in 0..1usize << (layers.len() - 1) {
            let boundaries: Vec<usize> = (1..layers.len()).filter(|place| chosen >> (place - 1) & 1 == 1).collect();
            if boundaries.len() + 1 != groups.len() {
                continue;
            }
            let cut = Partition::from_boundaries(layers.len(), &boundaries).unwrap();
            let mut held = Vec::new();
            for (stage, range) in cut.ranges().enumerate() {
                held.extend(layers.all()[range].iter().map(|layer| layer.held_by(groups[stage], &links())));
                let next = groups.get(stage + 1).copied().unwrap_or(groups[stage]);
                if let Some(last) = held.last_mut() {
                    last.output_bytes = 1.0 / groups[stage].min(next) as f64;
                }
            }
            let profile = cut.profile(&Layers::new(held).unwrap(), links()).unwrap();
            let plan = OneFOneB.build(Size::new(groups.len(), microbatches)).unwrap().with_transfers().unwrap();
            least = least.min(simulate(&plan, &profile, &Default::default()).unwrap().makespan);
        }
    }
    least
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn no_sizes_of_groups_and_cut_are_faster_and_more_sizes_never_make_a_plan_slower(
        blocks in 1usize..4, first in 1u32..12, ranks in 2usize..6, microbatches in 1usize..6
    ) {
        let layers = layers(blocks, f64::from(first));
        let request = request(layers.clone(), ranks, microbatches);
        let alone = best_plan(&request).map_or(f64::INFINITY, |report| report.best.seconds);
        let report = best_plan(&request.with_tensor_groups(vec![2, 4])).unwrap();
        let least = by_brute_force(&layers, ranks, microbatches, &[1, 2, 4]);
        let found = report.best.seconds;
        prop_assert!(found <= least * (1.0 + 1e-9), "{} s and {} s: {}", found, least, report.best);
        prop_assert!(found <= alone);
        prop_assert!(report.bound <= found * (1.0 + 1e-9));
    }
}
