//! Costs scaled by the kind of operation.

use crate::simulate_properties::priced;
use burn_pipeline_plan::cost::{Factors, LinkCost, LinkCosts, LinkOverride, Profile, StageCost, UniformCosts};
use burn_pipeline_plan::plan::Placement;
use burn_pipeline_plan::schedule::{Size, by_name};
use burn_pipeline_plan::simulate::{SimulateOptions, simulate};
use proptest::{prop_assert, proptest};

fn alike(factor: f64) -> Factors {
    Factors {
        forward: factor,
        input: factor,
        weight: factor,
        backward: factor,
        unshard: factor,
        reduce_grad: factor,
        transfer: factor,
    }
}

proptest! {
    #[test]
    fn a_step_whose_operations_all_take_longer_takes_as_much_longer((plan, profile) in priced(4, 6), factor in 0.1..9.0) {
        let options = SimulateOptions::default();
        let seconds = |profile: &Profile| simulate(&plan, profile, &options).unwrap().makespan;
        let (once, scaled) = (seconds(&profile), seconds(&profile.scaled(&alike(factor)).unwrap()));
        prop_assert!((scaled - once * factor).abs() <= 1e-9 * scaled, "{once} times {factor} is not {scaled}");
    }
}

#[test]
fn each_factor_is_for_its_own_operations() {
    let (ranks, microbatches) = (4, 8);
    let seconds = |schedule: &str, factors: Factors| {
        let plan = by_name(schedule).unwrap().build(Size::new(ranks, microbatches)).unwrap();
        let profile = Profile::uniform(plan.placement(), UniformCosts::new(1.0, 1.0, 1.0)).unwrap();
        simulate(&plan, &profile.scaled(&factors).unwrap(), &SimulateOptions::default()).unwrap().makespan
    };
    let with = |forward, backward| Factors { forward, backward, ..Factors::default() };
    // (m + p - 1) (F + B), whatever I and W take.
    for (forward, backward) in [(1.0, 1.0), (2.0, 1.0), (1.0, 3.0), (0.5, 0.25)] {
        let factors = Factors { input: 7.0, weight: 9.0, ..with(forward, backward) };
        let expected = (microbatches + ranks - 1) as f64 * (forward + 2.0 * backward);
        assert!((seconds("GPipe", factors) - expected).abs() < 1e-9, "GPipe, {factors:?}");
        assert!((seconds("1F1B", factors) - expected).abs() < 1e-9, "1F1B, {factors:?}");
    }
    // ZBH1: m (F + I + W) + (p - 1) (F + I - W) while W is the shortest; it has no whole backward.
    for (input, weight) in [(1.0, 1.0), (2.0, 1.0), (1.5, 0.5)] {
        let factors = Factors { input, weight, backward: 9.0, ..Factors::default() };
        let (all, bubble) = (1.0 + input + weight, 1.0 + input - weight);
        let expected = microbatches as f64 * all + (ranks - 1) as f64 * bubble;
        assert!((seconds("ZBH1", factors) - expected).abs() < 1e-9, "ZBH1, {factors:?}: {}", seconds("ZBH1", factors));
    }
}

#[test]
fn links_collectives_and_fused_actions_scale_and_bytes_stay() {
    let stage = StageCost {
        forward: 2.0,
        input: Some(1.0),
        weight: Some(1.0),
        overlap: Some(3.0),
        unshard: 0.5,
        reduce_grad: 0.25,
        activation_bytes: 7.0,
        message_bytes: 8.0,
        ..StageCost::default()
    };
    let between = vec![LinkOverride { from: 1, to: 0, latency: 0.1, bandwidth: Some(10.0) }];
    let links = LinkCosts { default: LinkCost { latency: 0.5, bandwidth: None }, between };
    let profile = Profile::new(vec![stage; 2], links).unwrap().with_skips(vec![]).unwrap();
    let factors =
        Factors { forward: 2.0, backward: 4.0, unshard: 3.0, reduce_grad: 5.0, transfer: 2.0, ..Factors::default() };
    let scaled = profile.scaled(&factors).unwrap();
    let of = &scaled.stages()[1];
    // Fusing reduced F and B from 4 seconds to 3; so it reduces 12 to 9.
    assert_eq!((of.forward, of.full_backward(), of.overlap), (4.0, 8.0, Some(9.0)));
    assert_eq!((of.unshard, of.reduce_grad, of.activation_bytes, of.message_bytes), (1.5, 1.25, 7.0, 8.0));
    assert_eq!(scaled.links().link(1, 0).seconds(20.0), 2.0 * profile.links().link(1, 0).seconds(20.0));
    assert_eq!(scaled.links().link(0, 1).seconds(20.0), 1.0);
    let free = profile.scaled(&Factors { transfer: 0.0, ..Factors::default() }).unwrap();
    assert_eq!(free.links().link(1, 0).seconds(1e9), 0.0);
    let costs = UniformCosts::new(1.0, 1.0, 1.0);
    let uniform = Profile::uniform(&Placement::looped(2, 1).unwrap(), costs).unwrap();
    for wrong in [-1.0, f64::NAN, f64::INFINITY] {
        assert!(uniform.scaled(&Factors { forward: wrong, ..Factors::default() }).is_err(), "{wrong}");
    }
}
