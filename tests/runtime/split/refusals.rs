//! A stage that cannot be captured is refused with the reason, or runs plainly with the plain numbers.

use super::models::{Looking, Running, Tower, WIDTH, linear, noise};
use crate::cases::read;
use burn::module::Module;
use burn::tensor::{Device, Tensor};
use burn_pipeline::plan::StageId;
use burn_pipeline::schedule::Size;
use burn_pipeline::stage::{Batch, EngineReport, SplitBackward, Stage, StageBox};
use burn_pipeline::train::{Pipeline, PipelineError};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The loss, the gradients, and each stage's engine.
type Ran = (f64, Vec<Vec<f32>>, Vec<(StageId, EngineReport)>);

/// Runs two ranks, the second with this stage, and returns loss, weights and engines.
fn run(
    stage: impl Fn() -> StageBox + Send + Sync + 'static,
    split: SplitBackward,
    target: &Tensor<2>,
) -> Result<Ran, PipelineError> {
    let mut pipeline = Pipeline::builder()
        .schedule("ZBH1", Size::new(2, 2))
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
    assert!(engines[0].1.captured);
    let report = &engines[1].1;
    assert!(!report.captured);
    assert!(report.reason.contains(reason), "{}", report.reason);
    let refused = run(stage, SplitBackward::Captured, &target).unwrap_err().to_string();
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
    // Copies of a module share running statistics, so each run loads its own record.
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

static FORWARDS: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];

/// Reads a value and counts its forwards. It may declare that it reads.
#[derive(Module, Debug)]
struct Reading {
    looking: Looking,
    says: bool,
}

impl Stage for Reading {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, extra: ()) -> Tensor<2> {
        FORWARDS[usize::from(self.says)].fetch_add(1, Ordering::Relaxed);
        self.looking.forward(x, extra)
    }

    fn skip_capture(&self) -> Option<&'static str> {
        self.says.then_some("it looks at a value")
    }
}

#[test]
fn a_stage_that_says_that_it_cannot_be_captured_is_not_tried() {
    let (target, looking) = (noise([6, WIDTH]), Looking::new());
    let ran = |says: bool, split| {
        let module = Reading { looking: looking.clone(), says };
        run(move || StageBox::with_loss(module.clone(), distance), split, &target)
    };
    let (loss, gradients, engines) = ran(true, SplitBackward::Auto).unwrap();
    assert!(!engines[1].1.captured);
    assert!(engines[1].1.reason.contains("it looks at a value"), "{}", engines[1].1.reason);
    let (plain_loss, plain_gradients, _) = ran(false, SplitBackward::Auto).unwrap();
    assert_eq!((loss, gradients), (plain_loss, plain_gradients));
    // Two microbatches of one shape. Without the declaration there is one more attempt, which ends in a panic.
    let [silent, saying] = FORWARDS.each_ref().map(|count| count.load(Ordering::Relaxed));
    assert_eq!((saying, silent), (2, 3));
    let refused = ran(true, SplitBackward::Captured).unwrap_err().to_string();
    assert!(refused.contains("cannot be captured: it looks at a value"), "{refused}");
    assert_eq!(FORWARDS[1].load(Ordering::Relaxed), 2);
}
