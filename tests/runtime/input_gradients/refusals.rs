//! What has no gradient is refused by name, and so is what the option does not go with.

use super::{Data, LAYERS, MICROBATCHES, SAMPLES, WIDTH, builder, stack};
use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig};
use burn::tensor::{Int, Tensor};
use burn_pipeline::plan::Plan;
use burn_pipeline::schedule::by_name;
use burn_pipeline::stage::{Names, Stage};
use burn_pipeline::train::{BuildError, GradientError, NotTogether, PipelineError};
use burn_pipeline::{Accumulation, AutoPipeline, Batch, Builder, Pipeline, Size, StageBox, StageContext};
use pipeline_tests::device::device;

/// Reads tokens, floats that it may leave out, and floats.
#[derive(Module, Debug)]
struct Words {
    rows: Embedding,
}

impl Stage for Words {
    type Input = (Tensor<1, Int>, Tensor<2>);
    type Extra = Tensor<1, Int>;
    type Output = Tensor<2>;

    fn extras(&self) -> Vec<&'static str> {
        vec!["more"]
    }

    fn forward(&self, (ids, _): Self::Input, more: Tensor<1, Int>) -> Tensor<2> {
        self.rows.forward((ids + more).unsqueeze()).squeeze_dim(0)
    }
}

fn words() -> Builder {
    Pipeline::builder().schedule("1F1B", Size::new(1, 2)).devices(vec![device()]).input_gradients(true).stages(|at| {
        let rows = EmbeddingConfig::new(8, WIDTH).init(&at.device);
        StageBox::with_loss(Words { rows }, |y: Tensor<2>, wanted: Tensor<2>| (y - wanted).square().mean())
            .named(Names::default())
    })
}

#[test]
fn integers_extras_that_nobody_reads_and_floats_without_influence_have_none() {
    let (ids, floats) = (Tensor::<1, Int>::zeros([4], &device()), Tensor::<2>::zeros([4, WIDTH], &device()));
    let batch = Batch::new((ids.clone(), floats.clone())).target(floats.clone()).extra("more", ids);
    let report = words().build().unwrap().accumulate(batch.extra("unread", floats)).unwrap();
    let integers = report.extra_gradient::<Tensor<1>>("more").unwrap_err();
    assert_eq!(integers, GradientError::Integers { what: "the extra `more`".to_owned() });
    let not_read = report.extra_gradient::<Tensor<2>>("unread").unwrap_err();
    assert_eq!(not_read, GradientError::NotRead { name: "unread".to_owned() });
    let unused = report.input_gradient::<Tensor<2>>().unwrap_err();
    assert_eq!(unused, GradientError::Unused { what: "the input".to_owned(), tensor: 1 });
    assert!(report.input_gradient::<Option<Tensor<2>>>().unwrap().is_none());
}

#[test]
fn a_batch_without_floats_is_refused_before_anything_runs() {
    #[derive(Module, Debug)]
    struct Only {
        rows: Embedding,
    }

    impl Stage for Only {
        type Input = Tensor<1, Int>;
        type Extra = ();
        type Output = Tensor<2>;

        fn forward(&self, ids: Tensor<1, Int>, (): ()) -> Tensor<2> {
            self.rows.forward(ids.unsqueeze()).squeeze_dim(0)
        }
    }

    let builder = words().stages(|at| {
        let rows = EmbeddingConfig::new(8, WIDTH).init(&at.device);
        StageBox::with_loss(Only { rows }, |y: Tensor<2>, wanted: Tensor<2>| (y - wanted).square().mean())
    });
    let mut pipeline = builder.build().unwrap();
    let ids = Tensor::<1, Int>::zeros([4], &device());
    let refused = pipeline.accumulate(Batch::new(ids).target(Tensor::<2>::zeros([4, WIDTH], &device()))).unwrap_err();
    assert!(matches!(refused, PipelineError::NoFloats), "{refused}");
    assert_eq!(pipeline.progress().batches, 0);
}

#[test]
fn another_type_is_refused_and_an_option_is_read_where_there_is_a_gradient() {
    let mut pipeline = builder("1F1B", Size::new(2, MICROBATCHES), &[0]).build().unwrap();
    let report = pipeline.accumulate(Data::new(0).batch()).unwrap();
    let refused = report.input_gradient::<Tensor<3>>().unwrap_err();
    assert!(matches!(&refused, GradientError::Type { what, .. } if what == "the input"), "{refused}");
    let read: Option<Tensor<2>> = report.input_gradient().unwrap();
    assert_eq!(read.unwrap().dims(), [SAMPLES, WIDTH]);
}

#[test]
fn without_the_option_there_are_none() {
    let builder = builder("1F1B", Size::new(2, MICROBATCHES), &[0]).input_gradients(false);
    let report = builder.build().unwrap().accumulate(Data::new(0).batch()).unwrap();
    assert_eq!(report.input_gradient::<Tensor<2>>().unwrap_err(), GradientError::Off);
    assert_eq!(report.extra_gradient::<Tensor<2>>("shift").unwrap_err(), GradientError::Off);
}

#[test]
fn tensor_parallel_stages_and_a_schedule_chosen_by_measured_steps_are_refused() {
    let size = Size::new(2, MICROBATCHES);
    let refused = builder("1F1B", size, &[0]).tensor_parallel(2).build().map(drop).unwrap_err();
    assert!(matches!(refused, BuildError::NotTogether(NotTogether { .. })), "{refused}");
    let refused = AutoPipeline::new(builder("1F1B", size, &[0]), size, Default::default()).map(drop).unwrap_err();
    assert!(refused.to_string().contains("schedules are compared without the backwards of frozen stages"), "{refused}");
}

#[test]
fn weights_cut_over_replicas_are_refused() {
    let builder = builder("1F1B", Size::new(2, 2), &[0]).accumulation(Accumulation::AsTheyCome).data_parallel(2);
    let builder = builder.stages(|at: &StageContext| {
        let mut part = stack(at.layers(LAYERS), &[0, 1, 2, 3], &at.device);
        for layer in &mut part.layers {
            layer.weight = at.replicas.cut(layer.weight.clone(), 0);
        }
        if at.is_last() { StageBox::with_loss(part, super::loss) } else { StageBox::new(part) }
    });
    let refused = builder.build().map(drop).unwrap_err();
    assert!(refused.to_string().contains("these gradients are not compared with the plain loop's yet"), "{refused}");
}

#[test]
fn a_plan_that_leaves_out_the_backwards_of_frozen_stages_is_refused() {
    let schedule = by_name("GPipe").unwrap();
    let plan = schedule.build(Size::new(LAYERS, MICROBATCHES)).unwrap().train_from(2).unwrap();
    let plan = Plan::from_csv("mine", &plan.with_transfers().unwrap().to_csv()).unwrap();
    let refused = builder("1F1B", Size::new(4, 4), &[2, 3]).plan(plan).build().map(drop).unwrap_err();
    assert!(
        matches!(&refused, BuildError::Pass(error) if error.to_string().contains("train from stage 0")),
        "{refused}"
    );
}
