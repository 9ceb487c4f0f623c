//! A pipeline computes what one device computes: the loss, every gradient, and the weights after two AdamW steps
//! equal the plain loop on the same microbatches, bit for bit if gradients are added in the same order.

use crate::cases::{Case, Stack, Text, range, read, sizes};
use burn::optim::AdamWConfig;
use burn_pipeline::plan::{Action, Placement, PlacementKind, Plan, StageId};
use burn_pipeline::schedule::{Chunks, GPipe, OneFOneB, Schedule, Size, all};
use burn_pipeline::stage::{Accumulation, SplitBackward};
use burn_pipeline::train::{Builder, Pipeline};
use pipeline_tests::device::device;
use pipeline_tests::reference::{Reference, ReferenceStep};

const RATE: f64 = 1e-2;

/// A pipeline of this case, on the tests' device.
pub(crate) fn builder<C: Case>(schedule: &dyn Schedule, size: Size) -> Builder {
    let name = schedule.info().name;
    let builder = Pipeline::builder().schedule(name, size);
    builder.devices(vec![device()]).stages(C::stage).optimizer(|| AdamWConfig::new().init())
}

/// The plain loop's first steps; the second one checks the optimizer's state.
pub(crate) struct Plain {
    microbatches: usize,
    steps: Vec<(ReferenceStep, Vec<Vec<f32>>)>,
}

impl Plain {
    pub(crate) fn new<C: Case>(case: &C, microbatches: usize, samples: usize) -> Self {
        let sizes = sizes(samples, microbatches.min(samples));
        let mut reference = Reference::new(case.model());
        let mut step = || {
            let step = reference.step(&sizes, RATE, None, |model, i| case.loss(model, range(&sizes, i)));
            (step, reference.weights())
        };
        Self { microbatches: sizes.len(), steps: vec![step(), step()] }
    }
}

/// Asserts that gradients of the first step, and losses and weights of all steps, equal the plain loop's bit for
/// bit.
pub(crate) fn assert_parity<C: Case>(case: &C, builder: &Builder, microbatches: usize, samples: usize, name: &str) {
    let plain = Plain::new(case, microbatches, samples);
    assert_equal(case, &mut builder.clone().build().unwrap(), &plain, &format!("{name}, {samples} samples"));
}

/// Like [`assert_equal`], for stages with unused outputs. Captured stages learn which from a first batch, whose
/// gradients may be added in another order.
pub(crate) fn assert_equal_from_the_second_batch<C: Case>(
    case: &C,
    pipeline: &mut Pipeline,
    plain: &Plain,
    name: &str,
) {
    for (got, expected) in gradients(case, pipeline).iter().zip(&plain.steps[0].0.gradients) {
        let close = got.len() == expected.len() && got.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6);
        assert!(close, "gradients of the first batch: {name}: {got:?}, {expected:?}");
    }
    assert_equal(case, pipeline, plain, name);
}

/// The gradients of the batch, without changing the pipeline.
fn gradients<C: Case>(case: &C, pipeline: &mut Pipeline) -> Vec<Vec<f32>> {
    pipeline.accumulate(case.batch()).unwrap();
    let gradients = pipeline.take_gradients().unwrap();
    gradients.iter().flatten().map(|g| g.as_ref().map(read).unwrap_or_default()).collect()
}

/// Like [`assert_parity`], with a plain loop that several pipelines are compared with.
pub(crate) fn assert_equal<C: Case>(case: &C, pipeline: &mut Pipeline, plain: &Plain, name: &str) {
    for (step, (expected, weights)) in plain.steps.iter().enumerate() {
        let place = format!("{name}, {} microbatches, step {step}", plain.microbatches);
        if step == 0 {
            assert_eq!(gradients(case, pipeline), expected.gradients, "gradients: {place}");
        }
        let report = pipeline.step(case.batch(), RATE).unwrap();
        assert_eq!(report.microbatches, plain.microbatches);
        assert_eq!(report.loss, expected.loss, "loss: {place}");
        let got: Vec<Vec<f32>> = pipeline.weights().unwrap().iter().flatten().map(read).collect();
        assert_eq!(got, *weights, "weights: {place}");
    }
}

/// GPipe and 1F1B with gradients added as they come; `sizes` are microbatches and samples.
fn for_all_sizes<C: Case>(sizes: impl IntoIterator<Item = (usize, usize)>, new: impl Fn(usize) -> C) {
    for (microbatches, samples) in sizes {
        let case = new(samples);
        let plain = Plain::new(&case, microbatches, samples);
        for ranks in 1..=4 {
            for schedule in [&GPipe as &dyn Schedule, &OneFOneB] {
                let builder = builder::<C>(schedule, Size::new(ranks, microbatches));
                let name = format!("{} on {ranks} ranks, {samples} samples", schedule.info().name);
                assert_equal(&case, &mut builder.build().unwrap(), &plain, &name);
            }
        }
    }
}

#[test]
fn a_stack_with_an_integer_input_equals_the_plain_loop_bit_for_bit() {
    // Fewer microbatches than ranks, as many, more, and many more; with one sample each, and uneven.
    for_all_sizes(
        [1, 2, 3, 4, 6, 9].into_iter().flat_map(|count| [(count, count), (count, 3 * count / 2 + 1)]),
        Stack::new,
    );
}

#[test]
fn a_transformer_equals_the_plain_loop_bit_for_bit() {
    for_all_sizes([(1, 2), (3, 5), (6, 6), (9, 14)], Text::new);
}

/// The chunks per rank to try: at most eight stages.
fn chunks(schedule: &dyn Schedule, ranks: usize) -> Vec<usize> {
    match schedule.info().chunks {
        Chunks::Exactly(n) => vec![n],
        Chunks::Any => (1..=3).filter(|v| v * ranks <= 8).collect(),
    }
}

#[test]
fn every_schedule_equals_the_plain_loop_bit_for_bit_with_ordered_accumulation() {
    let mut proved = 0;
    let plain = [1, 3, 5, 8].map(|count| (count, Plain::new(&Text::new(count), count, count)));
    for schedule in all().into_iter().filter(|schedule| schedule.info().name != "ForwardOnly") {
        for ranks in 1..=4 {
            for chunks in chunks(schedule.as_ref(), ranks) {
                for &(microbatches, ref plain) in &plain {
                    let size = Size { ranks, chunks, microbatches };
                    if schedule.build(size).is_err() {
                        let bidirectional = schedule.info().placement == PlacementKind::Bidirectional;
                        assert!(bidirectional && ranks % 2 == 1, "{} refuses {size:?}", schedule.info().name);
                        continue;
                    }
                    // Capturing every stage again takes most of a small test's time, so only some sizes do it.
                    let split = if microbatches % 4 == 3 { SplitBackward::Auto } else { SplitBackward::Eager };
                    let builder = builder::<Text>(schedule.as_ref(), size).split(split);
                    let builder = builder.accumulation(Accumulation::Ordered);
                    let name = format!("{} on {ranks} ranks with {chunks} chunks", schedule.info().name);
                    assert_equal(&Text::new(microbatches), &mut builder.build().unwrap(), plain, &name);
                    proved += 1;
                }
            }
        }
    }
    println!("{proved} configurations equal the plain loop");
}

/// Two routes through the ranks in opposite directions, one microbatch after the other.
fn both_ways(ranks: usize, microbatches: [usize; 2]) -> Plan {
    let placement = Placement::bidirectional(ranks).unwrap();
    let mut rows = vec![Vec::new(); ranks];
    for (route, microbatch) in (0..2).flat_map(|route| (0..microbatches[route]).map(move |m| (route, m))) {
        let at = |index| StageId::in_route(route, index);
        for stage in (0..ranks).map(at) {
            rows[placement.rank_of(stage)].push(Action::forward(stage, microbatch));
        }
        for stage in (0..ranks).rev().map(at) {
            rows[placement.rank_of(stage)].push(Action::backward(stage, microbatch));
        }
    }
    Plan::new("both ways", placement, microbatches.to_vec(), rows).unwrap()
}

#[test]
fn a_rank_that_holds_both_replicas_of_a_stage_equals_the_plain_loop() {
    for (ranks, microbatches) in [(1, [1, 1]), (3, [1, 1]), (3, [2, 1]), (5, [2, 2])] {
        let plan = both_ways(ranks, microbatches);
        let total = plan.total_microbatches();
        let ordered = builder::<Text>(&GPipe, Size::new(ranks, total)).plan(plan).accumulation(Accumulation::Ordered);
        assert_parity(&Text::new(total), &ordered, total, total, &format!("{ranks} ranks, ordered"));
        if microbatches == [1, 1] {
            let as_they_come = ordered.accumulation(Accumulation::AsTheyCome);
            assert_parity(&Text::new(total), &as_they_come, total, total, &format!("{ranks} ranks, as they come"));
        }
    }
}
