//! The weight of a loss: samples or classes count differently, and a reduction that does not use it is refused.

use crate::cases::noise;
use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::activation::log_softmax;
use burn::tensor::{Device, Int, Tensor};
use burn_pipeline::execute::ExecuteError;
use burn_pipeline::schedule::Size;
use burn_pipeline::stage::{Batch, Loss, Reduction, Stage, StageBox, StageError, init_seeded};
use burn_pipeline::train::{Pipeline, PipelineError, StageContext};
use pipeline_tests::mlp::{self, WIDTH};

const RATE: f64 = 1e-2;
const SAMPLES: usize = 8;

fn rows(numbers: Vec<f32>) -> Tensor<2> {
    Tensor::<1>::from_floats(&*numbers, &Device::flex()).reshape([SAMPLES, WIDTH])
}

/// The weight of a loss.
#[derive(Clone, Copy)]
enum Weight {
    None,
    Number,
    /// One for each sample, which are not summed.
    Each,
}

/// Two stages whose loss has a weight or not, under a reduction.
fn reduced(weight: Weight, reduction: Reduction) -> PipelineError {
    let stages = move |at: &StageContext| match at.is_last() {
        false => mlp::stage(at),
        true => {
            let loss = move |(y, _): (Tensor<2>, Tensor<2, Int>), target: Tensor<2>| {
                let sum = (y - target).square().sum();
                match weight {
                    Weight::None => Loss::from(sum),
                    Weight::Number => Loss::weighted(sum, 2.0),
                    Weight::Each => Loss::weighted(sum, Tensor::<1>::ones([2], &Device::flex())),
                }
            };
            StageBox::with_loss(mlp::part(at), loss).named(mlp::names(at))
        }
    };
    let ids = Tensor::<1, Int>::arange(0..SAMPLES as i64, &Device::flex()).remainder_scalar(3).reshape([SAMPLES, 1]);
    let batch = Batch::new((rows(noise(1, SAMPLES * WIDTH)), ids)).target(rows(noise(51, SAMPLES * WIDTH)));
    let builder = Pipeline::builder().schedule("1F1B", Size::new(2, 4)).devices(vec![Device::flex()]);
    let builder = builder.stages(stages).reduction(reduction).optimizer(|| AdamWConfig::new().init());
    builder.build().unwrap().step(batch, RATE).unwrap_err()
}

/// Scores for three classes.
#[derive(Module, Debug)]
struct Scores {
    linear: Linear,
}

impl Stage for Scores {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
        self.linear.forward(x)
    }
}

fn scores(at: &StageContext) -> Scores {
    Scores { linear: init_seeded(3, &at.device, |device| LinearConfig::new(WIDTH, 3).init(device)) }
}

const CLASS_WEIGHTS: [f32; 3] = [1.0, 5.0, 0.5];

/// The loss in [`Reduction`]'s documentation.
fn weighted(scores: Tensor<2>, wanted: Tensor<1, Int>, class_weights: Tensor<1>) -> Loss {
    let [samples, _] = scores.dims();
    let weights = class_weights.select(0, wanted.clone());
    let right = log_softmax(scores, 1).gather(1, wanted.reshape([samples, 1])).reshape([samples]);
    Loss::weighted((right * weights.clone()).sum().neg(), weights.sum())
}

#[test]
fn class_weights_are_weights_of_the_loss_and_not_of_a_mean() {
    let whole = pipeline_tests::reference::whole();
    let x = rows(noise(1, SAMPLES * WIDTH));
    let wanted = Tensor::<1, Int>::from_ints([0, 1, 1, 1, 2, 2, 0, 2], &Device::flex());
    let entropy = |device: &Device| CrossEntropyLossConfig::new().with_weights(Some(CLASS_WEIGHTS.into())).init(device);
    let plain =
        entropy(&whole.device).forward(scores(&whole).forward(x.clone().autodiff(), ()), wanted.clone().autodiff());
    let expected = f64::from(plain.into_scalar::<f32>());
    let loss = |reduction| {
        let stages = move |at: &StageContext| match reduction {
            Reduction::Weighted => StageBox::with_loss(scores(at), |y: Tensor<2>, wanted: Tensor<1, Int>| {
                let weights = Tensor::from_floats(CLASS_WEIGHTS, &y.device());
                weighted(y, wanted, weights)
            }),
            _ => StageBox::with_loss(scores(at), move |y: Tensor<2>, wanted: Tensor<1, Int>| {
                entropy(&y.device()).forward(y, wanted)
            }),
        };
        let builder = Pipeline::builder().schedule("1F1B", Size::new(1, 4)).devices(vec![Device::flex()]);
        let builder = builder.stages(stages).reduction(reduction).optimizer(|| AdamWConfig::new().init());
        builder.build().unwrap().step(Batch::new(x.clone()).target(wanted.clone()), RATE).unwrap().loss
    };
    let (right, wrong) = (loss(Reduction::Weighted), loss(Reduction::Mean));
    assert!((right - expected).abs() < 1e-6 * expected, "{right} is not {expected}");
    assert!((wrong - expected).abs() > 1e-2 * expected, "the data does not tell the two apart");
}

/// The stage's error.
fn refusal(error: &PipelineError) -> StageError {
    let of_rank = error.of_rank().unwrap();
    let ExecuteError::Stage { source, .. } = of_rank.cause() else { panic!("{error}") };
    source.clone()
}

#[test]
fn a_weight_that_is_missing_or_not_used_is_refused_and_no_device_is_blamed() {
    let error = reduced(Weight::None, Reduction::Weighted);
    assert_eq!(refusal(&error), StageError::NoWeight);
    let said = error.to_string();
    assert!(said.contains("rank 1, stage 1, microbatch 0, F: ") && said.contains("`Loss::weighted`"), "{said}");
    assert!(!said.contains("device"), "{said}");
    let of_each = refusal(&reduced(Weight::Each, Reduction::Weighted));
    assert_eq!(of_each, StageError::WeightShape { shape: vec![2] });
    for reduction in [Reduction::Mean, Reduction::Sum] {
        assert_eq!(refusal(&reduced(Weight::Number, reduction)), StageError::UnusedWeight { reduction });
    }
}
