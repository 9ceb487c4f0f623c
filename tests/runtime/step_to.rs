//! Outputs of training steps, and weights that the caller steps: the interface for an optimizer outside of the
//! pipeline.

use crate::cases::read;
use burn::optim::SgdConfig;
use burn::tensor::{Device, Int, Tensor};
use burn_pipeline::link::Threads;
use burn_pipeline::payload::{AnyTensor, TensorKind};
use burn_pipeline::plan::StageId;
use burn_pipeline::schedule::{Chunks, by_name};
use burn_pipeline::stage::SplitBackward;
use burn_pipeline::train::{PipelineError, StepReport};
use burn_pipeline::{Accumulation, Batch, Builder, Pipeline, Size};
use pipeline_tests::mlp::{WIDTH, stage};
use std::collections::HashMap;

const SAMPLES: usize = 10;
const RATE: f64 = 0.05;

fn batch() -> Batch {
    rows(SAMPLES)
}

fn rows(samples: usize) -> Batch {
    let device = Device::flex();
    let numbers = Tensor::<1, Int>::arange(0..(samples * WIDTH) as i64, &device).float().reshape([samples, WIDTH]);
    let ids = Tensor::<1, Int>::arange(0..samples as i64, &device).reshape([samples, 1]).remainder_scalar(3);
    Batch::new((numbers.clone().sin(), ids)).target(numbers.cos())
}

/// Two ranks, and four microbatches of 3, 3, 2 and 2 samples.
fn builder(schedule: &str) -> Builder {
    let schedule = by_name(schedule).unwrap();
    let chunks = match schedule.info().chunks {
        Chunks::Exactly(chunks) => chunks,
        Chunks::Any => 2,
    };
    let size = Size { ranks: 2, chunks, microbatches: 4 };
    Pipeline::builder().schedule(schedule, size).stages(stage).devices(vec![Device::flex()])
}

fn numbers((scores, ids): (Tensor<2>, Tensor<2, Int>)) -> (Vec<f32>, Vec<f32>) {
    (read(&AnyTensor::new(scores)), read(&AnyTensor::new(ids.float())))
}

#[test]
fn outputs_of_a_training_step_are_those_of_the_model_before_it_however_stages_run() {
    for schedule in ["GPipe", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV", "DualPipe"] {
        for split in [SplitBackward::Eager, SplitBackward::Captured] {
            let builder = builder(schedule).outputs(true).split(split).optimizer(|| SgdConfig::new().init());
            let mut pipeline = builder.build().unwrap();
            for step in 0..2 {
                let before = numbers(pipeline.eval(batch()).unwrap().output().unwrap());
                let report = pipeline.step(batch(), RATE).unwrap();
                let outputs: Vec<(Tensor<2>, Tensor<2, Int>)> = report.outputs().unwrap();
                let rows: Vec<usize> = outputs.iter().map(|(scores, _)| scores.dims()[0]).collect();
                assert_eq!(rows, [3, 3, 2, 2], "{schedule}, {split:?}, step {step}");
                assert!(numbers(report.output().unwrap()) == before, "{schedule}, {split:?}, step {step}");
                assert_joined_otherwise(&report, &before.0);
            }
        }
    }
}

/// Asserts that outputs joined along another dimension, and reduced by the caller's function, are those of the
/// whole batch rearranged.
fn assert_joined_otherwise(report: &StepReport, whole: &[f32]) {
    let sums = |scores: Tensor<2>| scores.sum_dim(0);
    let outputs: Vec<(Tensor<2>, Tensor<2, Int>)> = report.outputs().unwrap();
    let reduced = outputs.into_iter().map(|(scores, _)| sums(scores)).reduce(|all, more| all + more).unwrap();
    let whole = Tensor::<1>::from_floats(whole, &Device::flex()).reshape([SAMPLES, WIDTH]);
    let distance = (reduced - sums(whole)).abs().max().into_scalar::<f32>();
    assert!(distance < 1e-5, "{distance}");
    // Microbatches have 3, 3, 2 and 2 rows, so they cannot be joined along the other dimension.
    assert!(report.output_along::<(Tensor<2>, Tensor<2, Int>)>(&[1, 0]).is_err());
}

#[test]
fn outputs_of_even_microbatches_stand_side_by_side_along_the_second_dimension() {
    let mut pipeline = builder("1F1B").outputs(true).build().unwrap();
    let report = pipeline.accumulate(rows(8)).unwrap();
    let outputs: Vec<(Tensor<2>, Tensor<2, Int>)> = report.outputs().unwrap();
    let (scores, _): (Tensor<2>, Tensor<2, Int>) = report.output_along(&[1, 1]).unwrap();
    assert_eq!(scores.dims(), [2, 4 * WIDTH]);
    for (microbatch, (expected, _)) in outputs.into_iter().enumerate() {
        let piece = scores.clone().narrow(1, microbatch * WIDTH, WIDTH);
        assert_eq!(piece.into_data(), expected.into_data(), "microbatch {microbatch}");
    }
}

#[test]
fn outputs_that_were_not_asked_for_are_not_kept() {
    let mut pipeline = builder("1F1B").build().unwrap();
    let report = pipeline.accumulate(batch()).unwrap();
    assert!(report.outputs::<(Tensor<2>, Tensor<2, Int>)>().unwrap().is_empty());
    assert!(report.output::<(Tensor<2>, Tensor<2, Int>)>().is_err());
}

/// The caller's own optimizer: plain gradient descent.
fn step(pipeline: &mut Pipeline) -> Result<f64, PipelineError> {
    let report = pipeline.accumulate(batch())?;
    let mut stepped = HashMap::new();
    for (weights, gradients) in pipeline.named_weights()?.into_iter().zip(pipeline.take_gradients()?) {
        let floats = weights.into_iter().filter(|weight| weight.value.kind() == TensorKind::Float);
        for (weight, gradient) in floats.zip(gradients) {
            if let Some(gradient) = gradient {
                stepped.insert(weight.id, weight.value.plus(gradient.scale(-RATE)));
            }
        }
    }
    pipeline.step_to(stepped, report.observed)?;
    Ok(report.loss)
}

#[test]
fn weights_that_the_caller_steps_are_those_that_the_pipeline_would_in_every_copy_of_a_stage() {
    for schedule in ["GPipe", "ZBVZeroBubble", "DualPipe"] {
        for replicas in [1, 2] {
            let builder = builder(schedule).accumulation(Accumulation::Ordered).data_parallel(replicas);
            let mut own = builder.clone().optimizer(|| SgdConfig::new().init()).build().unwrap();
            let mut caller = builder.build().unwrap();
            for number in 1..=3 {
                let expected = own.step(batch(), RATE).unwrap().loss;
                // Under a bidirectional schedule, half of the microbatches run on the other copy of each stage.
                assert_eq!(step(&mut caller).unwrap(), expected, "{schedule}, {replicas} replica(s), step {number}");
                assert_eq!(caller.progress().steps, number);
            }
            let weights = |pipeline: &mut Pipeline| -> Vec<Vec<f32>> {
                pipeline.weights().unwrap().iter().flatten().map(read).collect()
            };
            assert!(weights(&mut own) == weights(&mut caller), "{schedule}, {replicas} replica(s)");
        }
    }
}

#[test]
fn every_process_gets_the_outputs_and_takes_over_the_weights_that_all_step() {
    for schedule in ["1F1B", "DualPipe"] {
        let run = |pipeline: &mut Pipeline| {
            let outputs = |pipeline: &mut Pipeline| {
                let report = pipeline.accumulate(batch()).unwrap();
                numbers(report.output().unwrap())
            };
            let before = outputs(pipeline);
            pipeline.take_gradients().unwrap();
            let losses = [step(pipeline).unwrap(), step(pipeline).unwrap()];
            (before, losses, outputs(pipeline))
        };
        let builder = builder(schedule).outputs(true).accumulation(Accumulation::Ordered);
        let expected = run(&mut builder.clone().build().unwrap());
        let links = Threads::new(2);
        // One pipeline per rank, as in processes.
        std::thread::scope(|scope| {
            let rank = |rank: usize| {
                let (builder, link) = (builder.clone(), Box::new(links.link(rank, Device::flex())));
                scope.spawn(move || run(&mut builder.build_rank(link).unwrap()))
            };
            for (number, rank) in [rank(0), rank(1)].into_iter().enumerate() {
                assert!(rank.join().unwrap() == expected, "{schedule}, rank {number}");
            }
        });
    }
}

#[test]
fn a_stepped_weight_of_another_shape_is_refused_by_name() {
    let mut pipeline = builder("GPipe").build().unwrap();
    let weights = pipeline.named_weights().unwrap();
    let (first, wrong) = (weights[1][0].id, Tensor::<1>::zeros([2], &Device::flex()));
    let error = pipeline.step_to(HashMap::from([(first, AnyTensor::new(wrong))]), Vec::new()).unwrap_err();
    let message = error.to_string();
    assert!(message.contains(&format!("stage {}", StageId::new(1))), "{message}");
    assert!(message.contains("`layers.0.linear.weight`") && message.contains("[2]"), "{message}");
}
