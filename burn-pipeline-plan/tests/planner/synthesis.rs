//! Synthesised schedules, compared with the exact optimum, the catalogue and the simulator.

use crate::exact::{Small, optimum};
use burn_pipeline_plan::cost::{LinkCost, LinkCosts, Profile, StageCost, UniformCosts};
use burn_pipeline_plan::plan::{Action, CheckOptions, Placement, Plan};
use burn_pipeline_plan::planner::{PlannerError, Synthesis};
use burn_pipeline_plan::schedule::{Size, by_name};
use burn_pipeline_plan::simulate::{SimulateOptions, simulate};
use proptest::prelude::{Just, Strategy, prop, prop_oneof};
use proptest::{prop_assert, prop_assert_eq, proptest};

/// The instance as a profile and a placement.
fn profile(small: &Small) -> (Profile, Placement) {
    let stage = |(place, s): (usize, &[u32; 3])| StageCost {
        forward: f64::from(s[0]),
        input: Some(f64::from(s[1])),
        weight: Some(f64::from(s[2])),
        backward: small.whole.as_ref().map(|whole| f64::from(whole[place])),
        activation_bytes: 1.0,
        ..StageCost::default()
    };
    let default = LinkCost { latency: f64::from(small.latency), bandwidth: None };
    let links = LinkCosts { default, between: vec![] };
    let ranks = small.ranks.iter().max().unwrap() + 1;
    let routes = small.ranks.chunks(small.stages()).map(<[usize]>::to_vec).collect();
    let placement = Placement::from_map(ranks, routes).unwrap();
    // Both routes run the same stages.
    let stages = small.seconds[..small.stages()].iter().enumerate().map(stage).collect();
    (Profile::new(stages, links).unwrap(), placement)
}

/// Pseudo-random numbers that are the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// Every size up to 4 ranks and 4 microbatches with one stage a rank, with even and uneven costs, under every cap.
fn instances() -> Vec<Small> {
    let mut numbers = Numbers(1);
    let mut instances = Vec::new();
    for ranks in 1..=4usize {
        for microbatches in 1..=4 {
            let mut costs = vec![vec![[1, 1, 1]; ranks], vec![[2, 2, 1]; ranks], vec![[2, 3, 2]; ranks]];
            let mut uneven = || [1, 1, 1].map(|least| least + numbers.below(4) as u32);
            costs.extend((0..3).map(|_| (0..ranks).map(|_| uneven()).collect::<Vec<_>>()));
            for (seconds, latency) in costs.into_iter().flat_map(|c| [0, 1, 3].map(|latency| (c.clone(), latency))) {
                for cap in 1..=microbatches {
                    let (ranks, microbatches) = ((0..ranks).collect(), vec![microbatches]);
                    let seconds = seconds.clone();
                    instances.push(Small { ranks, seconds, whole: None, latency, microbatches, cap });
                }
            }
        }
    }
    instances
}

/// The effort of local search: a twenty-fifth of the default, a few hundred moves.
const EFFORT: usize = 200_000;

/// The makespan of the synthesis of one instance.
fn makespan(small: &Small) -> f64 {
    let (profile, placement) = profile(small);
    // A cap that all activations of a rank fit under has no effect.
    let held = small.stages() / placement.ranks() * small.microbatches.iter().sum::<usize>();
    let cap = (small.cap < held).then_some(small.cap as f64);
    let synthesis = Synthesis { cap, effort: EFFORT, ..Synthesis::default() };
    let made = synthesis.build(&profile, &placement, &small.microbatches, &[]).unwrap();
    let step = simulate(&made.plan, &profile, &SimulateOptions::default()).unwrap();
    assert_eq!(step.makespan, made.makespan);
    assert!(step.peak_bytes() <= small.cap as f64, "{small:?}: {}", step.peak_bytes());
    assert!(made.lower_bound <= made.makespan, "{small:?}");
    made.plan.check(&CheckOptions::default()).unwrap();
    made.makespan
}

/// The makespan of the synthesis and the optimum of one instance; `None` if the optimum takes too long to prove.
fn both(small: &Small) -> (f64, Option<u32>) {
    let made = makespan(small);
    (made, optimum(small, made.ceil() as u32, 300_000))
}

/// Compares makespans with optima and prints the result. Returns the number of optima that were not reached or not
/// decided, and the largest gap.
fn compare(what: &str, instances: &[Small]) -> (usize, f64) {
    let outcomes: Vec<(f64, Option<u32>)> = instances.iter().map(both).collect();
    let (mut met, mut decided, mut largest, mut sum) = (0, 0, 0.0f64, 0.0);
    for (small, (made, best)) in instances.iter().zip(outcomes) {
        let Some(best) = best else {
            println!("not decided: {small:?}, {made}");
            continue;
        };
        let gap = made / f64::from(best) - 1.0;
        if gap > 0.0 {
            println!("{made} against {best}: {small:?}");
        }
        (met, decided) = (met + usize::from(gap == 0.0), decided + 1);
        (largest, sum) = (largest.max(gap), sum + gap);
    }
    let (largest_percent, mean) = (100.0 * largest, 100.0 * sum / f64::from(decided));
    let all = instances.len();
    println!(
        "{what}: {met} of {decided} optima met ({all} instances), largest gap {largest_percent:.2} %, mean {mean:.3} %"
    );
    (all - met, largest)
}

#[test]
fn with_one_stage_a_rank_every_optimum_of_up_to_4_ranks_and_4_microbatches_is_met() {
    let (missed, _) = compare("one stage a rank", &instances());
    assert_eq!(missed, 0);
}

/// Every size up to 4 ranks and 4 microbatches with two stages a rank, in a V and a loop, with even and uneven costs,
/// without a cap.
fn instances_of_two_stages() -> Vec<Small> {
    let mut numbers = Numbers(2);
    let mut instances = Vec::new();
    for count in 1..=4usize {
        let (v, looped) = ((0..count).chain((0..count).rev()), (0..count).chain(0..count));
        let mut placements = vec![v.collect::<Vec<_>>(), looped.collect()];
        placements.dedup();
        for (ranks, microbatches) in placements.iter().flat_map(|ranks| (1..=4).map(move |m| (ranks, m))) {
            let even = [[1, 1, 1], [2, 2, 1], [2, 3, 2]].map(|seconds| vec![seconds; ranks.len()]);
            let mut uneven = || [1, 1, 1].map(|least| least + numbers.below(4) as u32);
            let uneven: Vec<Vec<_>> = (0..3).map(|_| ranks.iter().map(|_| uneven()).collect()).collect();
            for (seconds, latency) in even.into_iter().chain(uneven).flat_map(|c| [0, 1, 3].map(|l| (c.clone(), l))) {
                let (ranks, cap, microbatches) = (ranks.clone(), 2 * microbatches, vec![microbatches]);
                instances.push(Small { ranks, seconds, whole: None, latency, microbatches, cap });
            }
        }
    }
    instances
}

#[test]
fn with_two_stages_a_rank_every_optimum_of_up_to_4_ranks_and_4_microbatches_is_met() {
    let instances = instances_of_two_stages();
    assert_eq!(instances.len(), 7 * 4 * 18);
    let (missed, _) = compare("two stages a rank", &instances);
    assert_eq!(missed, 0);
}

/// The instances under every cap that one microbatch fits under and that may bind.
fn under_caps(instances: Vec<Small>) -> Vec<Small> {
    let under = |small: Small| {
        let stages = small.stages() / (small.ranks.iter().max().unwrap() + 1);
        (stages..stages * small.microbatches.iter().sum::<usize>()).map(move |cap| Small { cap, ..small.clone() })
    };
    instances.into_iter().flat_map(under).collect()
}

#[test]
fn under_every_cap_with_two_stages_a_rank_every_optimum_of_up_to_4_ranks_and_4_microbatches_is_met() {
    let instances = under_caps(instances_of_two_stages());
    assert_eq!(instances.len(), 7 * 18 * (2 + 4 + 6));
    let (missed, _) = compare("two stages a rank under caps", &instances);
    assert_eq!(missed, 0);
}

/// Three stages a rank on up to 3 ranks, in a wave and a loop, with 1 to 3 microbatches.
fn instances_of_three_stages() -> Vec<Small> {
    let mut numbers = Numbers(3);
    let mut instances = Vec::new();
    for count in 1..=3usize {
        let there = || 0..count;
        let placements = [
            there().chain(there().rev()).chain(there()).collect(),
            there().chain(there()).chain(there()).collect::<Vec<usize>>(),
        ];
        for (ranks, microbatches) in placements.iter().flat_map(|ranks| (1..=3).map(move |m| (ranks, m))) {
            for latency in [0, 1, 3] {
                let mut seconds = || [1, 1, 1].map(|least| least + numbers.below(4) as u32);
                let seconds = ranks.iter().map(|_| seconds()).collect();
                let (ranks, cap, microbatches) = (ranks.clone(), 3 * microbatches, vec![microbatches]);
                instances.push(Small { ranks, seconds, whole: None, latency, microbatches, cap });
            }
        }
    }
    instances
}

#[test]
fn with_three_stages_a_rank_every_optimum_of_up_to_3_ranks_and_3_microbatches_is_met() {
    let instances = instances_of_three_stages();
    let all = [under_caps(instances.clone()), instances].concat();
    let (missed, _) = compare("three stages a rank, with caps and without", &all);
    assert_eq!((all.len(), missed), (216, 0));
}

/// Two routes in opposite directions over up to 4 ranks, with up to 4 microbatches in all, without a cap.
fn instances_of_two_routes() -> Vec<Small> {
    let mut numbers = Numbers(4);
    let mut instances = Vec::new();
    for (count, microbatches) in (1..=4usize).flat_map(|p| [[1, 1], [2, 1], [2, 2], [3, 1]].map(|m| (p, m.to_vec()))) {
        let even = [[1, 1, 1], [2, 2, 1], [2, 3, 2]].map(|seconds| vec![seconds; count]);
        let mut uneven = || [1, 1, 1].map(|least| least + numbers.below(4) as u32);
        let uneven: Vec<Vec<_>> = (0..3).map(|_| (0..count).map(|_| uneven()).collect()).collect();
        for (seconds, latency) in even.into_iter().chain(uneven).flat_map(|c| [0, 1, 3].map(|l| (c.clone(), l))) {
            let (ranks, seconds) = ((0..count).chain((0..count).rev()).collect(), [seconds.clone(), seconds].concat());
            let (microbatches, cap) = (microbatches.clone(), microbatches.iter().sum());
            instances.push(Small { ranks, seconds, whole: None, latency, microbatches, cap });
        }
    }
    instances
}

#[test]
fn in_both_directions_every_optimum_of_up_to_4_ranks_and_4_microbatches_is_met() {
    let free = instances_of_two_routes();
    let all = [under_caps(free.clone()), free].concat();
    let (missed, _) = compare("both directions, with caps and without", &all);
    assert_eq!((all.len(), missed), (936, 0));
}

/// The instances with whole backwards that take one second less than `I` and `W` together.
fn with_whole_backwards(instances: Vec<Small>) -> Vec<Small> {
    let whole = |small: &Small| small.seconds.iter().map(|[_, i, w]| i + w - 1).collect();
    instances.into_iter().map(|small| Small { whole: Some(whole(&small)), ..small }).collect()
}

#[test]
fn where_backwards_may_be_whole_every_optimum_of_both_mixed_is_met() {
    let (missed, _) = compare("whole backwards or split", &with_whole_backwards(instances()));
    assert_eq!(missed, 0);
}

#[test]
fn with_several_stages_a_rank_and_backwards_that_may_be_whole_every_known_optimum_is_met() {
    let two_stages = [instances_of_two_stages(), under_caps(instances_of_two_stages())].concat();
    let two_routes = [instances_of_two_routes(), under_caps(instances_of_two_routes())].concat();
    for (what, instances) in [("two stages a rank", two_stages), ("both directions", two_routes)] {
        let instances: Vec<Small> = with_whole_backwards(instances).into_iter().step_by(20).collect();
        let (_, gap) = compare(&format!("{what}, whole backwards or split"), &instances);
        assert_eq!(gap, 0.0, "{what}");
    }
}

#[test]
fn without_branch_and_bound_the_gap_stays_small() {
    let made = |small: &Small, synthesis: Synthesis| {
        let (profile, placement) = profile(small);
        synthesis.build(&profile, &placement, &small.microbatches, &[]).unwrap().makespan
    };
    let instances: Vec<Small> = instances_of_two_stages().into_iter().step_by(5).collect();
    let gap = |small: &Small| {
        let local = Synthesis { effort: EFFORT / 4, nodes: 0, ..Synthesis::default() };
        made(small, local) / makespan(small) - 1.0
    };
    let gaps: Vec<f64> = instances.iter().map(gap).collect();
    let largest = gaps.iter().copied().fold(0.0, f64::max);
    println!(
        "local search alone: {} of {} optima met, largest gap {:.2} %",
        gaps.iter().filter(|&&gap| gap == 0.0).count(),
        gaps.len(),
        100.0 * largest
    );
    assert!(gaps.iter().all(|&gap| gap >= 0.0) && largest < 0.06);
}

/// A plan that runs one microbatch at a time, forward and back.
fn one_by_one(placement: &Placement, microbatches: usize) -> Plan {
    let mut rows = vec![Vec::new(); placement.ranks()];
    for m in 0..microbatches {
        placement.all_stages().for_each(|s| rows[placement.rank_of(s)].push(Action::forward(s, m)));
        for stage in placement.all_stages().collect::<Vec<_>>().into_iter().rev() {
            let backward = [Action::backward_input(stage, m), Action::backward_weight(stage, m)];
            rows[placement.rank_of(stage)].extend(backward);
        }
    }
    Plan::new("one by one", placement.clone(), vec![microbatches], rows).unwrap()
}

fn stage_costs() -> impl Strategy<Value = StageCost> {
    let amounts = (0.1..3.0f64, 0.1..3.0f64, 0.1..3.0f64, prop::option::of(0.1..5.0f64));
    // `I` may free most of the activations, or leave more for `W` than there were. Some stages recompute.
    let bytes = (1.0..10.0f64, -0.8..0.9f64, prop::option::of(0.0..5.0f64), 0.0..20.0f64);
    (amounts, bytes).prop_map(|((forward, input, weight, backward), (activations, freed, again, parameters))| {
        let stage = StageCost {
            forward,
            input: Some(input),
            weight: Some(weight),
            backward,
            activation_bytes: activations,
            freed_at_input_bytes: freed * activations,
            weight_bytes: parameters,
            ..StageCost::default()
        };
        again.map_or(stage, |input| stage.recomputing(input))
    })
}

proptest! {
    #![proptest_config(proptest::test_runner::Config { cases: 60, ..Default::default() })]

    #[test]
    fn whatever_the_memory_there_is_a_plan_under_the_cap_wherever_one_microbatch_at_a_time_fits(
        (placement, stages) in (1..=4usize, 0..4usize).prop_flat_map(|(ranks, shape)| {
            let placement = match shape {
                0 => Placement::looped(ranks, 1),
                1 => Placement::looped(ranks, 2),
                2 => Placement::v(ranks),
                _ => Placement::wave(ranks, 3),
            };
            let placement = placement.unwrap();
            let stages = prop::collection::vec(stage_costs(), placement.stages());
            (Just(placement), stages)
        }),
        microbatches in 1..6usize,
        room in prop_oneof![Just(1.0), 1.0..2.0f64],
        latency in 0.0..1.0f64,
    ) {
        let links = LinkCosts { default: LinkCost { latency, bandwidth: None }, between: vec![] };
        let profile = Profile::new(stages, links).unwrap();
        let slow = simulate(&one_by_one(&placement, microbatches), &profile, &SimulateOptions::default()).unwrap();
        let cap = slow.peak_bytes() * room;
        let synthesis = Synthesis { cap: Some(cap), effort: EFFORT, ..Synthesis::default() };
        let made = synthesis.build(&profile, &placement, &[microbatches], &[]).unwrap();
        let step = simulate(&made.plan, &profile, &SimulateOptions::default()).unwrap();
        prop_assert!(step.peak_bytes() <= cap * (1.0 + 1e-9));
        prop_assert_eq!(step.makespan, made.makespan);
        prop_assert!(made.makespan <= slow.makespan * (1.0 + 1e-9));
        prop_assert!(made.makespan >= made.lower_bound * (1.0 - 1e-9));
        prop_assert!(made.plan.check(&CheckOptions::default()).is_ok());
    }
}

#[test]
fn a_given_plan_is_never_made_worse() {
    let placement = Placement::v(4).unwrap();
    let costs = UniformCosts::new(1.0, 1.0, 1.0).with_transfer(0.1);
    let profile = Profile::uniform(&placement, costs).unwrap();
    let given = by_name("ZBV").unwrap().build(Size::new(4, 8).with_chunks(2)).unwrap();
    let before = simulate(&given, &profile, &SimulateOptions::default()).unwrap();
    let synthesis = Synthesis { cap: Some(before.peak_bytes()), effort: EFFORT, ..Synthesis::default() };
    let made = synthesis.build(&profile, &placement, &[8], &[given]).unwrap();
    assert!(made.makespan <= before.makespan, "{} and {}", made.makespan, before.makespan);
}

#[test]
fn what_cannot_fit_is_refused() {
    let (ranks, seconds, microbatches) = (vec![0, 1], vec![[1, 1, 1]; 2], vec![2]);
    let small = Small { ranks, seconds, whole: None, latency: 0, microbatches, cap: 1 };
    let (profile, placement) = profile(&small);
    let tight = Synthesis { cap: Some(0.5), ..Synthesis::default() };
    let refused =
        |synthesis: Synthesis, counts: &[usize]| synthesis.build(&profile, &placement, counts, &[]).unwrap_err();
    assert_eq!(refused(tight, &[2]), PlannerError::NoOrderFits { cap: 0.5 });
    assert!(matches!(refused(Synthesis::default(), &[]), PlannerError::Counts { .. }));
    assert!(matches!(refused(Synthesis::default(), &[0]), PlannerError::Counts { .. }));
}
