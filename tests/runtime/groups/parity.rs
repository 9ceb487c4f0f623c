//! Two replicas of a pipeline of two ranks compute what one device computes on the whole batch.

use super::{RATE, SCHEDULES, difference, gradients, parts, replicated, weights};
use crate::cases::{Case, Stack, Text, range, sizes};
use burn_pipeline::stage::{Accumulation, SplitBackward};
use burn_pipeline::train::Builder;
use pipeline_tests::device::few;
use pipeline_tests::reference::{Reference, ReferenceStep};

/// Small enough that gradients are clipped.
const CLIP: f64 = 0.05;

/// The order of a pipeline's additions, which decides the plain loop that it equals bit for bit.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Order {
    /// Microbatch by microbatch, as on one device.
    Plain,
    /// Within each replica, then over the replicas' sums.
    Parts,
}

/// Two steps of the plain loop, each over `batches` batches, with the weights after each.
fn plain<C: Case>(case: &C, order: Order, samples: usize, batches: usize) -> Vec<(ReferenceStep, Vec<Vec<f32>>)> {
    let mut reference = Reference::new(case.model());
    let count = (4 * 2).min(samples);
    let of_one = sizes(samples, count);
    let all: Vec<usize> = (0..batches).flat_map(|_| of_one.clone()).collect();
    let parts = match order {
        Order::Plain => vec![(0..all.len()).collect()],
        Order::Parts => parts(count, batches, 2),
    };
    let mut step = || {
        let loss_of = |model: &C::Model, i: usize| case.loss(model, range(&of_one, i % count));
        (reference.step_in_parts(&all, &parts, RATE, Some(CLIP), loss_of), reference.weights())
    };
    vec![step(), step()]
}

/// Asserts that losses, norms and weights of all steps equal the plain loop's.
fn assert_equal<C: Case>(
    case: &C,
    builder: Builder,
    plain: &[(ReferenceStep, Vec<Vec<f32>>)],
    (samples, batches): (usize, usize),
    place: &str,
) {
    let mut pipeline = builder.clip_norm(CLIP).build().unwrap();
    let count = (4 * 2).min(samples);
    for (step, (expected, after)) in plain.iter().enumerate() {
        let place = format!("{place}, {samples} samples, {batches} batches, step {step}");
        for _ in 1..batches {
            pipeline.accumulate(case.batch()).unwrap();
        }
        let report = pipeline.step(case.batch(), RATE).unwrap();
        assert_eq!((report.microbatches, report.samples), (count, samples));
        // The batches' losses are added up separately first: as many roundings of 2^-53 as there are batches.
        let close = |a: f64, b: f64| (a - b).abs() <= b.abs() * 1e-15 * batches as f64;
        assert!(close(report.loss, expected.loss), "{place}: loss {} for {}", report.loss, expected.loss);
        assert_eq!(report.gradient_norm, Some(expected.norm), "{place}");
        assert_eq!(weights(&mut pipeline), *after, "{place}");
    }
}

/// Samples and batches of a step: even and uneven microbatches and replicas, and fewer microbatches than requested.
const STEPS: [(usize, usize); 5] = [(8, 1), (13, 1), (13, 3), (16, 1), (7, 3)];

#[test]
fn replicas_equal_the_plain_loop_bit_for_bit_with_ordered_accumulation() {
    for (samples, batches) in few(STEPS.to_vec(), 1) {
        let case = Text::new(samples);
        let plain = plain(&case, Order::Plain, samples, batches);
        // Capturing every stage again takes most of a small test's time, so only single batches do it.
        let split = if batches == 1 { SplitBackward::Auto } else { SplitBackward::Eager };
        for schedule in few(SCHEDULES.to_vec(), 1) {
            let builder = replicated::<Text>(schedule, 4, 2).accumulation(Accumulation::Ordered).split(split);
            let place = format!("{schedule:?}, ordered");
            assert_equal(&case, builder, &plain, (samples, batches), &place);
        }
    }
}

#[test]
fn sums_of_replicas_equal_a_plain_loop_that_adds_up_parts_bit_for_bit() {
    for (samples, batches) in STEPS {
        let case = Stack::new(samples);
        let plain = plain(&case, Order::Parts, samples, batches);
        for schedule in SCHEDULES {
            let builder = replicated::<Stack>(schedule, 4, 2);
            assert_equal(&case, builder, &plain, (samples, batches), &format!("{schedule:?}"));
        }
    }
}

#[test]
fn gradients_equal_the_plain_loop_for_one_to_four_replicas() {
    for replicas in 1..=4 {
        for samples in [3, 8, 9] {
            let case = Stack::new(samples);
            let count = (2 * replicas).min(samples);
            let sizes = sizes(samples, count);
            let expected = Reference::new(case.model()).step_in_parts(
                &sizes,
                &parts(count, 1, replicas),
                RATE,
                None,
                |model, i| case.loss(model, range(&sizes, i)),
            );
            let mut pipeline = replicated::<Stack>(("1F1B", 1), 2, replicas).build().unwrap();
            let report = pipeline.accumulate(case.batch()).unwrap();
            let place = format!("{replicas} replicas, {samples} samples");
            assert_eq!(report.loss, expected.loss, "{place}");
            assert_eq!(report.timeline.ranks, 2 * replicas, "{place}");
            assert_eq!(gradients(&mut pipeline), expected.gradients, "{place}");
        }
    }
}

#[test]
fn the_order_of_additions_is_all_that_tells_the_two_ways_apart() {
    let case = Stack::new(13);
    let run = |accumulation| {
        let mut pipeline = replicated::<Stack>(("1F1B", 1), 4, 2).accumulation(accumulation).build().unwrap();
        pipeline.accumulate(case.batch()).unwrap();
        gradients(&mut pipeline)
    };
    let (ordered, as_they_come) = (run(Accumulation::Ordered), run(Accumulation::AsTheyCome));
    let distance = difference(&ordered, &as_they_come);
    // Sums of eight numbers, each rounded to 2^-24 of at most the largest.
    let largest = ordered.iter().flatten().fold(0.0f32, |largest, g| largest.max(g.abs()));
    assert!(distance > 0.0 && distance < 8.0 * largest * 2.0f32.powi(-24), "{distance} of {largest}");
}
