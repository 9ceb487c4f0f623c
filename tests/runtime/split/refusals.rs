//! What cannot be captured is refused with the reason, and run the plain way with the plain numbers.

use super::models::{Looking, Running, Tower, WIDTH, linear, noise};
use crate::cases::read;
use burn::tensor::{Device, Tensor};
use burn_pipeline::plan::Stage as StageId;
use burn_pipeline::schedule::{Size, by_name};
use burn_pipeline::stage::{Batch, EngineReport, SplitBackward, StageBox};
use burn_pipeline::train::{Pipeline, PipelineError};

/// Runs two ranks, of which the second is this stage, and returns loss, weights and engines.
fn run(
    stage: impl Fn() -> StageBox + Send + Sync + 'static,
    split: SplitBackward,
    target: &Tensor<2>,
) -> Result<(f64, Vec<Vec<f32>>, Vec<(StageId, EngineReport)>), PipelineError> {
    let mut pipeline = Pipeline::builder()
        .schedule(by_name("ZBH1").unwrap(), Size::new(2, 2))
        .devices(vec![Device::flex()])
        .stages(move |at| if at.is_last() { stage() } else { StageBox::new(Tower { layers: Vec::new() }) })
        .split(split)
        .build()
        .unwrap();
    let report = pipeline.accumulate(Batch::new(target.clone()).target(target.clone()))?;
    let gradients = pipeline.take_gradients()?;
    let gradients = gradients.iter().flatten().flatten().map(read).collect();
    Ok((report.loss, gradients, pipeline.engines()?))
}

fn assert_refused(stage: impl Fn() -> StageBox + Clone + Send + Sync + 'static, reason: &str) {
    let target = noise([6, WIDTH]);
    let (loss, gradients, engines) = run(stage.clone(), SplitBackward::Auto, &target).unwrap();
    let (plain_loss, plain_gradients, _) = run(stage.clone(), SplitBackward::Eager, &target).unwrap();
    assert_eq!((loss, &gradients), (plain_loss, &plain_gradients));
    assert!(!gradients.is_empty());
    assert_eq!(engines[0].1.engine, "traced");
    let report = &engines[1].1;
    assert_eq!(report.engine, "eager");
    assert!(report.reason.contains(reason), "{}", report.reason);
    let refused = run(stage, SplitBackward::Traced, &target).unwrap_err().to_string();
    assert!(refused.contains("cannot be captured") && refused.contains(reason), "{refused}");
}

fn distance(y: Tensor<2>, target: Tensor<2>) -> Tensor<1> {
    (y - target).square().mean()
}

#[test]
fn control_flow_on_values() {
    let module = Looking::new();
    assert_refused(move || StageBox::with_loss(module.clone(), distance), "no concrete value");
}

#[test]
fn running_statistics() {
    let module = Running::new();
    // Running statistics are shared between copies of a module: each run gets a record of its own.
    assert_refused(
        move || StageBox::with_loss(burn::module::Module::fork(module.clone(), &super::models::device()), distance),
        "running statistics",
    );
}

#[test]
fn tensors_from_outside() {
    let module = Tower { layers: vec![linear()] };
    let outside = noise([1, WIDTH]).autodiff();
    let stage = move || {
        let outside = outside.clone();
        StageBox::with_loss(module.clone(), move |y: Tensor<2>, t: Tensor<2>| distance(y * outside.clone(), t))
    };
    assert_refused(stage, "");
}

#[test]
fn a_panic_of_the_user_is_the_user_s_and_names_its_place() {
    let module = Tower { layers: vec![linear()] };
    let stage =
        move || StageBox::with_loss(module.clone(), |_: Tensor<2>, _: Tensor<2>| -> Tensor<1> { panic!("mine") });
    let error = run(stage, SplitBackward::Auto, &noise([6, WIDTH])).unwrap_err();
    assert!(error.to_string().contains("mine"), "{error}");
}
