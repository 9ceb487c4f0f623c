//! An error says where it occurred: the step, what the stage had received and from whom, and the plan around it.
//! For common mistakes it says what to write instead.

use crate::watchdog::quiet_ranks;
use burn::backend::DispatchTensor;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{Device, Int, Tensor};
use burn_pipeline::execute::ExecuteError;
use burn_pipeline::ops::{DeferredOp, deferred};
use burn_pipeline::schedule::Size;
use burn_pipeline::stage::{Batch, SplitBackward, Stage, StageBox, StageError};
use burn_pipeline::train::{Pipeline, PipelineError, StageContext};

/// A layer of given widths. From its third forward on, it may fail.
#[derive(Module, Debug)]
struct Layer {
    linear: Linear,
}

impl Stage for Layer {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
        self.linear.forward(x)
    }
}

/// Three stages of width 4, 5, `third` and 2; the middle one expects 5.
fn pipeline(schedule: &str, third: usize) -> Pipeline {
    quiet_ranks();
    let stages = move |at: &StageContext| {
        let [from, to] = [[4, 5], [5, third], [6, 2]][at.index];
        let layer = Layer { linear: LinearConfig::new(from, to).init(&at.device) };
        match at.is_last() {
            false => StageBox::new(layer),
            true => StageBox::with_loss(layer, |y: Tensor<2>, t: Tensor<2>| (y - t).square().mean()),
        }
    };
    let builder = Pipeline::builder().schedule(schedule, Size::new(3, 2)).devices(vec![Device::flex()]);
    builder.stages(stages).optimizer(|| SgdConfig::new().init()).build().unwrap()
}

fn rows(width: usize) -> Tensor<2> {
    Tensor::ones([6, width], &Device::flex())
}

fn batch() -> Batch {
    Batch::new(rows(4)).target(rows(2))
}

#[test]
fn a_wrong_width_says_who_sent_it_in_which_step_and_where_in_the_plan() {
    for schedule in ["GPipe", "1F1B", "ZBH1"] {
        let mut pipeline = pipeline(schedule, 7);
        let error = pipeline.step(batch(), 0.1).unwrap_err();
        assert!(matches!(error.of_rank(), Some(ExecuteError::InRun { .. })), "{error}");
        let said = error.to_string();
        assert!(said.starts_with("rank 2, stage 2, microbatch 0, F: the stage's code panicked: "), "{said}");
        for part in [
            "\nin step 1, plan ",
            "a stage of type `runtime::located::Layer`",
            "it got the input (float F32 [3, 7]) from stage 1 on rank 1\n",
            "it got the target (float F32 [3, 2]) from the batch\n",
            "Rank 0",
        ] {
            assert!(said.contains(part), "{said} does not say {part}");
        }
        let marked = said.lines().find(|line| line.ends_with("<-- ERROR HERE")).unwrap();
        assert!(marked.contains("2F0"), "{said}");
        // The pipeline is as before: the same batch fails in the same way.
        assert_eq!(pipeline.step(batch(), 0.1).unwrap_err().to_string(), said);
    }
}

/// Returns its input, and fails in the backward.
#[derive(Debug)]
struct Breaking;

impl DeferredOp for Breaking {
    fn name(&self) -> &'static str {
        "breaking"
    }

    fn forward(&self, operands: &[DispatchTensor]) -> DispatchTensor {
        operands[0].clone()
    }

    fn gradient(&self, _: usize, _: &[DispatchTensor], _: &DispatchTensor) -> DispatchTensor {
        panic!("no gradient today")
    }
}

/// A layer whose backward fails.
#[derive(Module, Debug)]
struct Backless {
    linear: Linear,
}

impl Stage for Backless {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
        let operands = [self.linear.forward(x), self.linear.weight.val()].map(Tensor::into_dispatch);
        Tensor::from_dispatch(deferred(Breaking, operands.into()))
    }
}

#[test]
fn a_backward_that_breaks_says_what_gradient_it_had_got_from_whom() {
    quiet_ranks();
    let stages = |at: &StageContext| {
        let linear = LinearConfig::new(if at.is_first() { 4 } else { 5 }, 5).init(&at.device);
        match at.is_last() {
            false => StageBox::new(Backless { linear }),
            true => StageBox::with_loss(Layer { linear }, |y: Tensor<2>, t: Tensor<2>| (y - t).square().mean()),
        }
    };
    let builder = Pipeline::builder().schedule("ZBH1", Size::new(2, 2)).devices(vec![Device::flex()]);
    let mut pipeline = builder.stages(stages).split(SplitBackward::Eager).build().unwrap();
    let said = pipeline.accumulate(Batch::new(rows(4)).target(rows(5))).unwrap_err().to_string();
    assert!(said.starts_with("rank 0, stage 0, microbatch 0, I: ") && said.contains("no gradient today"), "{said}");
    assert!(said.contains("it got the gradient of its output (tag 1; tag 1; float F32 [3, 5]) from stage 1"), "{said}");
}

#[test]
fn the_step_is_counted_and_an_evaluation_is_none() {
    let mut pipeline = pipeline("1F1B", 6);
    for _ in 0..2 {
        pipeline.step(batch(), 0.1).unwrap();
    }
    // Five columns instead of four: the first stage fails.
    let error = pipeline.step(Batch::new(rows(5)).target(rows(2)), 0.1).unwrap_err().to_string();
    assert!(
        error.contains("in step 3, plan ") && error.contains("the input (float F32 [3, 5]) from the batch"),
        "{error}"
    );
    let mut pipeline = self::pipeline("1F1B", 6);
    let error = pipeline.eval(Batch::new(rows(5)).target(rows(2))).unwrap_err().to_string();
    assert!(error.contains("in an evaluation, plan "), "{error}");
}

#[test]
fn a_schedule_with_too_few_ranks_for_the_model_says_which_stage_it_ends_with() {
    // A factory for a model with exactly three stages.
    let stages = |at: &StageContext| {
        let layer = Layer { linear: LinearConfig::new(4, 4).init(&at.device) };
        match at.index {
            2 => StageBox::with_loss(layer, |y: Tensor<2>, t: Tensor<2>| (y - t).square().mean()),
            _ => StageBox::new(layer),
        }
    };
    let builder = Pipeline::builder().schedule("1F1B", Size::new(2, 2)).devices(vec![Device::flex()]);
    let error = builder.stages(stages).build().unwrap().accumulate(Batch::new(rows(4)).target(rows(4))).unwrap_err();
    assert!(matches!(error, PipelineError::NoLoss { last: 1, ranks: 2 }), "{error}");
    let said = error.to_string();
    assert!(said.contains("stage 1, the last of 2 on 2 rank(s)") && said.contains("as the model has stages"), "{said}");
}

/// A layer that reads a mask but does not declare it.
#[derive(Module, Debug)]
struct Masked {
    linear: Linear,
}

impl Stage for Masked {
    type Input = Tensor<2>;
    type Extra = Tensor<2, Int>;
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, mask: Tensor<2, Int>) -> Tensor<2> {
        self.linear.forward(x) * mask.float()
    }
}

#[test]
fn extras_that_are_not_named_are_asked_for() {
    let stages = |at: &StageContext| {
        let masked = Masked { linear: LinearConfig::new(4, 4).init(&at.device) };
        StageBox::with_loss(masked, |y: Tensor<2>, t: Tensor<2>| (y - t).square().mean())
    };
    let builder = Pipeline::builder().schedule("1F1B", Size::new(1, 2)).devices(vec![Device::flex()]);
    let mask = Tensor::<2, Int>::ones([6, 4], &Device::flex());
    let batch = Batch::new(rows(4)).target(rows(4)).extra("mask", mask);
    let error = builder.stages(stages).build().unwrap().accumulate(batch).unwrap_err();
    assert!(matches!(error, PipelineError::Refused { source: StageError::NoExtras { .. }, .. }), "{error}");
    assert!(error.to_string().contains("implement `extras` to name them"), "{error}");
}

#[test]
fn the_schedule_auto_is_told_where_schedules_are_chosen() {
    let builder = Pipeline::builder().schedule("auto", Size::new(2, 2)).devices(vec![Device::flex()]);
    assert!(builder.build().unwrap_err().to_string().contains("`AutoPipeline`"));
}
