//! The programs that a stage keeps: one for each shape and each combination of host values, up to a limit.

use super::model::{Host, Part, WIDTH, tensor};
use crate::warnings::warned;
use burn::module::Module;
use burn::nn::DropoutConfig;
use burn::tensor::{Device, Tensor};
use burn_pipeline::execute::Tuning;
use burn_pipeline::payload::{AnyTensor, Boundary, Payload};
use burn_pipeline::schedule::Size;
use burn_pipeline::stage::{Batch, SingleStage, SplitBackward, Stage, StageBox};
use burn_pipeline::train::Pipeline;
use pipeline_tests::reference::whole;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

fn captured(stage: StageBox) -> SingleStage {
    SingleStage::new(stage, SplitBackward::Captured, true)
}

fn forward(stage: &mut SingleStage, microbatch: usize, x: Tensor<2>) -> Vec<f32> {
    let output = stage.forward(microbatch, x.into_payload(), Payload::default()).unwrap();
    output.tensors().next().unwrap().to_data().unwrap().iter::<f32>().collect()
}

#[test]
fn a_value_that_comes_back_finds_its_programs_again() {
    let host = Arc::new(Host::default());
    let mut stage = captured(StageBox::new(Part::new(&whole(), &host, false)));
    let mut given = Vec::new();
    for step in [0, 1, 0, 1, 2, 0] {
        host.set(step);
        given.push(forward(&mut stage, given.len(), tensor(5, 2)));
    }
    assert_eq!(stage.report().programs.len(), 3);
    assert_eq!((&given[0], &given[1]), (&given[2], &given[3]));
    assert_eq!(given[0], given[5]);
    assert!(given[0] != given[1] && given[1] != given[4] && given[0] != given[4]);
}

#[test]
fn a_coefficient_that_changes_with_every_step_is_hinted_at_and_keeps_few_programs() {
    let host = Arc::new(Host::default());
    let mut stage = captured(StageBox::new(Part::new(&whole(), &host, false)));
    let warnings = warned(|| {
        for step in 0..100 {
            host.set(step);
            let output = forward(&mut stage, step, tensor(5, 2));
            assert!(output.iter().all(|value| value.is_finite()));
            let ones = AnyTensor::new(Tensor::<2>::ones([2, WIDTH], &Device::flex()));
            stage.backward(step, vec![Some(ones)]).unwrap();
            assert_eq!((stage.held(), stage.report().programs.len()), (0, (step + 1).min(64)));
        }
    });
    // One hint, with what to do.
    let hints: Vec<_> = warnings.iter().filter(|warning| warning.contains("captured anew")).collect();
    assert!(hints.len() == 1 && hints[0].contains("give it to the batch as a tensor"), "{warnings:?}");
}

/// Drops a share of its input, in tenths, which the host changes.
#[derive(Module, Debug)]
struct Dropping {
    #[module(skip)]
    tenths: Arc<AtomicUsize>,
}

impl Stage for Dropping {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
        DropoutConfig::new(self.tenths.load(Ordering::Relaxed) as f64 / 10.0).init().forward(x)
    }
}

#[test]
fn a_dropout_s_share_is_read_anew() {
    let tenths = Arc::new(AtomicUsize::new(7));
    let mut stage = captured(StageBox::new(Dropping { tenths: tenths.clone() }));
    let x = || Tensor::<2>::ones([100, 100], &Device::flex());
    let mut dropped =
        |microbatch| forward(&mut stage, microbatch, x()).iter().filter(|&&y| y == 0.0).count() as f64 / 1e4;
    let before = dropped(0);
    tenths.store(2, Ordering::Relaxed);
    let after = dropped(1);
    assert!((before - 0.7).abs() < 0.05 && (after - 0.2).abs() < 0.05, "{before} and {after}");
}

#[test]
fn no_more_programs_are_kept_than_the_builder_says() {
    let pipeline = |limit: usize| {
        let builder = Pipeline::builder().schedule("ZBH1", Size::new(2, 2)).devices(vec![Device::flex()]);
        let host = Arc::new(Host::default());
        host.set(0);
        let builder = builder
            .stages(move |at| super::model::stage(at, &host, false))
            .tuning(Tuning { captured_programs: limit, ..Tuning::default() });
        builder.build().unwrap()
    };
    let (mut few, mut many) = (pipeline(2), pipeline(64));
    for samples in [2, 4, 6, 8, 10, 4, 2, 10, 12, 2] {
        let batch = || Batch::new(tensor(samples, samples)).target(tensor(samples + 1, samples));
        let losses = [&mut few, &mut many].map(|pipeline| pipeline.accumulate(batch()).unwrap().loss);
        assert_eq!(losses[0], losses[1], "{samples} rows of {WIDTH}");
    }
    let kept = |pipeline: &mut Pipeline| -> Vec<usize> {
        let engines = pipeline.engines().unwrap().into_iter();
        engines.inspect(|(_, report)| assert!(report.captured)).map(|(_, r)| r.programs.len()).collect()
    };
    assert_eq!((kept(&mut few), kept(&mut many)), (vec![2; 2], vec![6; 2]));
}
