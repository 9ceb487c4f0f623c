//! Short functions that build and price plans, for tables and formulas.

use burn_pipeline_plan::cost::{LinkCost, LinkCosts, Profile, StageCost, UniformCosts};
use burn_pipeline_plan::plan::Plan;
use burn_pipeline_plan::schedule::{Size, by_name};
use burn_pipeline_plan::simulate::{SimulateOptions, Simulation, simulate};

/// A stage with these seconds of `F`, `I` and `W`.
pub(crate) fn stage(forward: f64, input: f64, weight: f64) -> StageCost {
    StageCost { forward, input: Some(input), weight: Some(weight), ..StageCost::default() }
}

/// A profile of `stages` times this stage, and links that are all alike.
pub(crate) fn same_stages(stage: StageCost, stages: usize, latency: f64, bandwidth: Option<f64>) -> Profile {
    let links = LinkCosts { default: LinkCost { latency, bandwidth }, between: Vec::new() };
    Profile::new(vec![stage; stages], links).unwrap()
}

pub(crate) fn sized(name: &str, ranks: usize, chunks: usize, microbatches: usize) -> Plan {
    build(name, Size { ranks, chunks, microbatches })
}

pub(crate) fn build(name: &str, size: Size) -> Plan {
    by_name(name).unwrap().build(size).unwrap()
}

pub(crate) fn price(plan: &Plan, costs: UniformCosts) -> Simulation {
    let profile = Profile::uniform(plan.placement(), costs).unwrap();
    simulate(plan, &profile, &SimulateOptions::default()).unwrap()
}

pub(crate) fn four(rate: f64) -> String {
    // A rate of zero is zero, whatever the last bit of a sum is.
    format!("{:.4}", if rate.abs() < 1e-12 { 0.0 } else { rate })
}

#[track_caller]
pub(crate) fn assert_near(left: f64, right: f64, what: &str) {
    assert!((left - right).abs() < 1e-9 * right.abs().max(1.0), "{what}: {left} is not {right}");
}
