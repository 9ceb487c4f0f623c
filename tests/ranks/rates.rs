//! Learning rates by parameter group are those of the plain loop, whichever rank holds the group.

use crate::cases::{Case, Text, range, read};
use burn::lr_scheduler::module_lr_scheduler::{ModuleLearningRate, ModuleLrScheduler};
use burn::module::ParamGroup;
use burn::optim::AdamWConfig;
use burn::tensor::Device;
use burn_pipeline::link::Link;
use burn_pipeline::schedule::Size;
use burn_pipeline::train::Pipeline;
use pipeline_tests::reference::Reference;
use std::time::Duration;

const MICROBATCHES: usize = 4;
const STEPS: usize = 3;

fn group() -> ParamGroup {
    ParamGroup::from_predicate("blocks.3.")
}

/// The rates of a step, with a different one for the group.
fn rates(step: usize) -> ModuleLearningRate {
    ModuleLrScheduler::new(1e-2).with_group(group(), 0.5 / (step + 1) as f64).step()
}

/// The losses and weights of the plain loop.
fn plain(rates: impl Fn(usize) -> ModuleLearningRate) -> Vec<(f64, Vec<Vec<f32>>)> {
    let (case, sizes) = (Text::new(MICROBATCHES), [1; MICROBATCHES]);
    let mut reference = Reference::new(case.model());
    let step = |step| {
        let given = reference.step(&sizes, rates(step), None, |model, i| case.loss(model, range(&sizes, i)));
        (given.loss, reference.weights())
    };
    (0..STEPS).map(step).collect()
}

/// Trains as one rank of the link.
pub(crate) fn by_group(link: Box<dyn Link>) {
    let builder = Pipeline::builder().schedule("1F1B", Size::new(link.ranks(), MICROBATCHES));
    let builder = builder.devices(vec![Device::flex()]).stages(Text::stage).optimizer(|| AdamWConfig::new().init());
    let builder = builder.parameter_group(group()).timeout(Duration::from_secs(60));
    let mut pipeline = builder.build_rank(link).unwrap();
    let step = |step| {
        let loss = pipeline.step(Text::new(MICROBATCHES).batch(), rates(step)).unwrap().loss;
        (loss, pipeline.weights().unwrap().iter().flatten().map(read).collect())
    };
    let given: Vec<(f64, Vec<Vec<f32>>)> = (0..STEPS).map(step).collect();
    assert_eq!(given, plain(rates));
    assert_ne!(given, plain(|_| 1e-2.into()), "the group's rate has no effect");
}
