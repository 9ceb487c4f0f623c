//! A batch that does not fit is refused before anything runs, and costs nothing: weights and accumulated gradients
//! are kept, and the pipeline continues. A vocabulary-parallel plan is refused when the pipeline is built.

use crate::cases::{noise, read};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Int, Tensor};
use burn_pipeline::cost::{Profile, UniformCosts, VocabularyCost};
use burn_pipeline::payload::BoundaryError;
use burn_pipeline::plan::StageId;
use burn_pipeline::schedule::{OneFOneB, Schedule, Size};
use burn_pipeline::stage::{Batch, MicrobatchError, Split, Stage, StageBox, StageError, init_seeded};
use burn_pipeline::train::{BuildError, Pipeline, PipelineError, StageContext};

const WIDTH: usize = 3;
const SAMPLES: usize = 5;

/// A layer that reads a mask beside its input.
#[derive(Module, Debug)]
struct Masked {
    linear: Linear,
}

impl Stage for Masked {
    type Input = Tensor<2>;
    type Extra = Tensor<2>;
    type Output = Tensor<2>;

    fn extras(&self) -> Vec<&'static str> {
        vec!["mask"]
    }

    fn forward(&self, x: Tensor<2>, mask: Tensor<2>) -> Tensor<2> {
        self.linear.forward(x) * mask
    }
}

fn masked(at: &StageContext) -> StageBox {
    let linear = |device: &Device| LinearConfig::new(WIDTH, WIDTH).init(device);
    let module = Masked { linear: init_seeded(at.index as u64, &at.device, linear) };
    match at.is_last() {
        true => StageBox::with_loss(module, |y: Tensor<2>, target: Tensor<2>| (y - target).square().mean()),
        false => StageBox::new(module),
    }
}

fn pipeline(schedule: &str) -> Pipeline {
    let chunks = if schedule == "ZBVZeroBubble" { 2 } else { 1 };
    let builder = Pipeline::builder().schedule(schedule, Size::new(2, 3).with_chunks(chunks));
    let builder = builder.devices(vec![Device::flex()]).stages(masked);
    builder.optimizer(|| AdamWConfig::new().init()).build().unwrap()
}

fn rows(seed: u64) -> Tensor<2> {
    Tensor::<1>::from_floats(&*noise(seed, SAMPLES * WIDTH), &Device::flex()).reshape([SAMPLES, WIDTH])
}

fn good(seed: u64) -> Batch {
    Batch::new(rows(seed)).target(rows(seed + 100)).extra("mask", rows(seed + 200))
}

fn weights(pipeline: &mut Pipeline) -> Vec<Vec<f32>> {
    pipeline.weights().unwrap().iter().flatten().map(read).collect()
}

/// A batch, and a check of its error.
type Bad = (Batch, Box<dyn Fn(&PipelineError) -> bool>);

/// Batches that do not fit.
fn bad() -> Vec<Bad> {
    let ints = || Tensor::<2, Int>::zeros([SAMPLES, WIDTH], &Device::flex());
    let empty = || Tensor::<2>::zeros([0, WIDTH], &Device::flex());
    let mut bad: Vec<Bad> = Vec::new();
    let mut add = |batch, test: fn(&PipelineError) -> bool| bad.push((batch, Box::new(test)));
    let masked = |batch: Batch| batch.extra("mask", rows(3));
    add(
        Batch::new(rows(1)).target(rows(2)),
        |e| matches!(e, PipelineError::Batch(MicrobatchError::MissingExtra { stage: 0, name }) if name == "mask"),
    );
    add(masked(Batch::new(rows(1)).target(ints())), |e| {
        let PipelineError::Refused { stage, source: StageError::Target(BoundaryError::Mismatch { .. }), .. } = e else {
            return false;
        };
        stage.index() > 0
    });
    add(masked(Batch::new(rows(1)).target((rows(2), rows(2)))), |e| {
        matches!(e, PipelineError::Refused { source: StageError::Target(BoundaryError::LeftOver { left: 1 }), .. })
    });
    add(
        masked(
            Batch::new(rows(1).unsqueeze::<3>())
                .target(rows(2).unsqueeze::<3>())
                .split_input(vec![Split::Dim(1)])
                .split_target(vec![Split::Dim(1)]),
        ),
        |e| {
            matches!(e, PipelineError::Refused { stage, source: StageError::Input(_), .. }
                if *stage == StageId::new(0))
        },
    );
    add(Batch::new(rows(1)).target(rows(2)).extra("mask", ints()), |e| {
        matches!(e, PipelineError::Refused { stage, source: StageError::Extra { .. }, .. }
                if *stage == StageId::new(0))
    });
    add(masked(Batch::new(rows(1)).target(rows(2))).split_input(vec![Split::Dim(0); 2]), |e| {
        matches!(e, PipelineError::Batch(MicrobatchError::SplitCount { tensors: 1, splits: 2, .. }))
    });
    add(masked(Batch::new(rows(1)).target(rows(2))).split_target(vec![Split::Dim(2)]), |e| {
        matches!(e, PipelineError::Batch(MicrobatchError::NoSuchDim { rank: 2, dim: 2, .. }))
    });
    add(masked(Batch::new(rows(1)).target(rows(2).slice(0..4))), |e| {
        matches!(e, PipelineError::Batch(MicrobatchError::SampleCount { got: 4, expected: SAMPLES, .. }))
    });
    add(Batch::new(empty()).target(empty()).extra("mask", empty()), |e| {
        matches!(e, PipelineError::Batch(MicrobatchError::Empty))
    });
    add(masked(Batch::new(rows(1))), |e| matches!(e, PipelineError::NoTarget));
    bad
}

#[test]
fn a_refused_batch_costs_nothing() {
    for schedule in ["GPipe", "1F1B", "ZBVZeroBubble"] {
        let (mut undisturbed, mut disturbed) = (pipeline(schedule), pipeline(schedule));
        let before = weights(&mut disturbed);
        undisturbed.accumulate(good(1)).unwrap();
        disturbed.accumulate(good(1)).unwrap();
        for (number, (batch, expected)) in bad().into_iter().enumerate() {
            let error = disturbed.step(batch, 0.1).unwrap_err();
            assert!(expected(&error), "{schedule}, bad batch {number}: {error}");
            assert_eq!(weights(&mut disturbed), before, "{schedule}, bad batch {number}");
        }
        let (expected, report) = (undisturbed.step(good(2), 0.1).unwrap(), disturbed.step(good(2), 0.1).unwrap());
        assert_eq!(report.loss, expected.loss, "{schedule}");
        assert_eq!(weights(&mut disturbed), weights(&mut undisturbed), "{schedule}");
        assert_ne!(weights(&mut disturbed), before, "{schedule}");
    }
}

#[test]
fn an_evaluation_refuses_what_a_step_refuses_but_for_the_target() {
    let mut pipeline = pipeline("1F1B");
    let count = bad().len();
    for (number, (batch, expected)) in bad().into_iter().enumerate() {
        match pipeline.eval(batch) {
            Err(error) => assert!(expected(&error), "bad batch {number}: {error}"),
            Ok(report) => assert!(number + 1 == count && report.loss.is_none(), "bad batch {number} passes"),
        }
    }
}

#[test]
fn a_plan_that_spreads_the_vocabulary_is_refused_at_build() {
    let plan = OneFOneB.build(Size::new(2, 3)).unwrap();
    let profile = Profile::uniform(plan.placement(), UniformCosts::new(1.0, 1.0, 1.0)).unwrap();
    let plan = plan.with_vocabulary(&profile.with_vocabulary(VocabularyCost::default()).unwrap()).unwrap();
    let builder = Pipeline::builder().plan(plan).devices(vec![Device::flex()]).stages(masked);
    let error = builder.optimizer(|| AdamWConfig::new().init()).build().unwrap_err();
    assert!(matches!(&error, BuildError::Vocabulary { plan, .. } if plan == "1F1B"), "{error}");
}
