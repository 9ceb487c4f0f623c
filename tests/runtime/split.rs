//! Captured programs split the backward and are right: compared with the plain engine, tensor by tensor.

use crate::cases::{Case, Stack, Text, read};
use crate::parity::{Plain, assert_equal, builder};
use burn::tensor::Tensor;
use burn_pipeline::schedule::{Size, by_name};
use burn_pipeline::stage::{SplitBackward, StageBox};
use burn_pipeline::train::{Pipeline, StageContext};

mod agreement;
mod extension;
pub(crate) mod models;
mod programs;
mod refusals;

/// For every stage: whether it is captured, and for how many shapes.
fn engines(pipeline: &mut Pipeline) -> Vec<(bool, usize)> {
    let engines = pipeline.engines().unwrap();
    engines.into_iter().map(|(_, report)| (report.captured, report.programs.len())).collect()
}

/// Asserts parity under each schedule, for its ranks and chunks.
fn assert_split<C: Case>(new: impl Fn(usize) -> C, schedules: &[(&str, usize, usize)]) {
    for (microbatches, samples) in [(1, 1), (3, 5), (5, 5), (8, 11)] {
        let case = new(samples);
        let plain = Plain::new(&case, microbatches, samples);
        for &(name, ranks, chunks) in schedules {
            let size = Size { ranks, chunks, microbatches };
            let mut pipeline = builder::<C>(by_name(name).unwrap().as_ref(), size).build().unwrap();
            let place = format!("{name} on {ranks} ranks, {samples} samples");
            assert_equal(&case, &mut pipeline, &plain, &place);
            let sizes = if samples % microbatches == 0 { 1 } else { 2 };
            assert_eq!(engines(&mut pipeline), vec![(true, sizes); ranks * chunks], "{place}");
        }
    }
}

#[test]
fn split_schedules_run_captured_stages_that_equal_the_plain_loop_bit_for_bit() {
    let interleaved = [1, 2, 4].map(|ranks| ("InterleavedZeroBubble", ranks, 2));
    assert_split(Stack::new, &[&[1, 2, 3, 4].map(|ranks| ("ZBH1", ranks, 1))[..], &interleaved].concat());
    assert_split(Text::new, &[("ZBH1", 2, 1), ("ZBVZeroBubble", 2, 2)]);
}

#[test]
fn captured_stages_run_whole_backwards_too() {
    let case = Text::new(5);
    let plain = Plain::new(&case, 3, 5);
    for name in ["GPipe", "1F1B"] {
        let builder = builder::<Text>(by_name(name).unwrap().as_ref(), Size::new(2, 3));
        let mut pipeline = builder.split(SplitBackward::Captured).build().unwrap();
        assert_equal(&case, &mut pipeline, &plain, name);
        assert_eq!(engines(&mut pipeline), vec![(true, 2); 2]);
    }
}

#[test]
fn plans_that_do_not_split_are_run_plainly_and_say_so() {
    let schedule = by_name("1F1B").unwrap();
    let mut pipeline = builder::<Stack>(schedule.as_ref(), Size::new(2, 2)).build().unwrap();
    for (_, report) in pipeline.engines().unwrap() {
        assert_eq!((report.captured, report.reason.as_str()), (false, "the plan does not split its backward"));
    }
    let schedule = by_name("ZBH1").unwrap();
    let asked = builder::<Stack>(schedule.as_ref(), Size::new(2, 2)).split(SplitBackward::Eager);
    for (_, report) in asked.build().unwrap().engines().unwrap() {
        assert_eq!((report.captured, report.reason.as_str()), (false, "it was asked for"));
    }
}

/// A loss that is a sum whose weight is computed on the device.
struct Weighted;

impl Weighted {
    fn stage(at: &StageContext) -> StageBox {
        let part = pipeline_tests::mlp::part(at);
        if !at.is_last() {
            return StageBox::new(part);
        }
        StageBox::with_loss(part, |(y, _): (Tensor<2>, Tensor<2, burn::tensor::Int>), target: Tensor<2>| {
            let near = y.clone().lower_elem(1.0).float();
            let sum = ((y - target).square() * near.clone()).sum();
            burn_pipeline::stage::Loss::weighted(sum, near.sum())
        })
    }
}

#[test]
fn weighted_losses_with_a_weight_from_the_device_equal_the_plain_engine() {
    let run = |split| {
        let schedule = by_name("ZBH1").unwrap();
        let builder = builder::<Stack>(schedule.as_ref(), Size::new(2, 3)).stages(Weighted::stage).split(split);
        let mut pipeline = builder.reduction(burn_pipeline::stage::Reduction::Weighted).build().unwrap();
        let losses: Vec<f64> = (0..3).map(|_| pipeline.step(Stack::new(5).batch(), 1e-2).unwrap().loss).collect();
        let weights: Vec<Vec<f32>> = pipeline.weights().unwrap().iter().flatten().map(read).collect();
        (losses, weights)
    };
    assert_eq!(run(SplitBackward::Captured), run(SplitBackward::Eager));
}
