//! `W` merged over microbatches: the same gradients up to rounding, from one matmul each.

use crate::cases::{Case, Stack, Text, noise, read};
use crate::parity::builder;
use burn::module::Param;
use burn::tensor::{FloatDType, Tensor};
use burn_pipeline::execute::Tuning;
use burn_pipeline::payload::{AnyTensor, Boundary, Payload};
use burn_pipeline::schedule::{Size, by_name};
use burn_pipeline::stage::{Accumulation, SingleStage, SplitBackward, StageBox};
use burn_pipeline::train::{BuildError, Builder};
use pipeline_tests::device::device;
use pipeline_tests::layers::Product;

const ROWS: usize = 3;
const WIDTH: usize = 16;
const MICROBATCHES: usize = 5;

fn numbers(seed: u64, rows: usize) -> Tensor<2> {
    Tensor::<1>::from_floats(&*noise(seed, rows * WIDTH), &device()).reshape([rows, WIDTH])
}

/// A captured stage of f32 after `F` and `I` of some microbatches.
fn halfway(rows: impl Fn(usize) -> usize) -> SingleStage {
    halfway_in(FloatDType::F32, rows)
}

fn halfway_in(dtype: FloatDType, rows: impl Fn(usize) -> usize) -> SingleStage {
    let numbers = |seed, rows| numbers(seed, rows).cast(dtype);
    let w = numbers(99, WIDTH).autodiff();
    let stage = StageBox::new(Product { w: Param::from_tensor(w) });
    let mut stage = SingleStage::new(stage, SplitBackward::Captured, true);
    for microbatch in 0..MICROBATCHES {
        let input = numbers(microbatch as u64, rows(microbatch)).into_payload();
        stage.forward(microbatch, input, Payload::default()).unwrap();
        let seed = AnyTensor::new(numbers(50 + microbatch as u64, rows(microbatch)));
        stage.backward_input(microbatch, vec![Some(seed)]).unwrap();
    }
    stage
}

fn gradient(mut stage: SingleStage) -> Vec<f32> {
    read(stage.gradients()[0].as_ref().unwrap())
}

fn assert_close(got: &[f32], expected: &[f32], place: &str) {
    let largest = expected.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
    for (got, expected) in got.iter().zip(expected) {
        assert!((got - expected).abs() <= 1e-5 * largest, "{place}: {got}, expected {expected}");
    }
}

#[test]
fn a_merged_weight_gradient_is_one_product_over_all_rows() {
    let microbatches: Vec<usize> = (0..MICROBATCHES).collect();
    let mut merged = halfway(|_| ROWS);
    merged.backward_weight(&microbatches).unwrap();
    assert_eq!(merged.held(), 0);
    let by_hand = {
        let rows = |from: u64| Tensor::cat((0..MICROBATCHES as u64).map(|s| numbers(from + s, ROWS)).collect(), 0);
        read(&AnyTensor::new(rows(0).transpose().matmul(rows(50))))
    };
    assert_eq!(gradient(merged), by_hand);

    let mut plain = halfway(|_| ROWS);
    microbatches.iter().for_each(|&microbatch| plain.backward_weight(&[microbatch]).unwrap());
    let plain = gradient(plain);
    assert_ne!(plain, by_hand, "these numbers do not distinguish the two ways");
    assert_close(&by_hand, &plain, "merged");
}

#[test]
fn half_precision_is_widened_before_rows_are_multiplied_and_a_half_precision_sum_rounded_once() {
    for half in [FloatDType::BF16, FloatDType::F16] {
        let mut merged = halfway_in(half, |_| ROWS);
        merged.backward_weight(&(0..MICROBATCHES).collect::<Vec<_>>()).unwrap();
        let wide = |seed| numbers(seed, ROWS).cast(half).cast(FloatDType::F32);
        let rows = |from: u64| Tensor::cat((0..MICROBATCHES as u64).map(|seed| wide(from + seed)).collect(), 0);
        let by_hand = rows(0).transpose().matmul(rows(50)).cast(half);
        assert_eq!(gradient(merged), read(&AnyTensor::new(by_hand)), "{half:?}");
    }
}

#[test]
fn microbatches_of_several_sizes_are_not_merged_and_right() {
    let rows = |microbatch: usize| if microbatch < 2 { ROWS + 1 } else { ROWS };
    let (mut merged, mut plain) = (halfway(rows), halfway(rows));
    let microbatches: Vec<usize> = (0..MICROBATCHES).collect();
    merged.backward_weight(&microbatches).unwrap();
    microbatches.iter().for_each(|&microbatch| plain.backward_weight(&[microbatch]).unwrap());
    assert_eq!(gradient(merged), gradient(plain));
}

fn weights<C: Case>(builder: Builder, case: &C) -> Vec<f32> {
    let mut pipeline = builder.build().unwrap();
    (0..3).for_each(|_| drop(pipeline.step(case.batch(), 1e-3).unwrap()));
    pipeline.weights().unwrap().iter().flatten().flat_map(read).collect()
}

fn assert_merging_changes_only_rounding<C: Case>(schedules: &[(&str, usize, usize)], new: impl Fn(usize) -> C) {
    for &(name, ranks, chunks) in schedules {
        let size = Size { ranks, chunks, microbatches: 8 };
        let builder = builder::<C>(by_name(name).unwrap().as_ref(), size);
        let case = new(8);
        let plain = weights(builder.clone(), &case);
        assert_close(
            &weights(builder.tuning(Tuning { merge_weights: true, ..Tuning::default() }), &case),
            &plain,
            name,
        );
    }
}

#[test]
fn training_with_merged_weights_differs_from_plain_training_by_rounding() {
    let schedules = [("ZBH1", 2, 1), ("ZBH1", 4, 1), ("ZBVZeroBubble", 2, 2), ("DualPipeV", 2, 2)];
    assert_merging_changes_only_rounding(&schedules, Stack::new);
    assert_merging_changes_only_rounding(&schedules[2..3], Text::new);
}

#[test]
fn merged_weights_and_ordered_sums_exclude_each_other() {
    let schedule = by_name("ZBH1").unwrap();
    let builder = builder::<Stack>(schedule.as_ref(), Size::new(2, 4))
        .tuning(Tuning { merge_weights: true, ..Tuning::default() });
    let error = builder.accumulation(Accumulation::Ordered).build().unwrap_err();
    assert!(matches!(error, BuildError::NotTogether(_)), "{error}");
}
