//! With `Builder::precision`, gradients of the batch are f32 without the loss scale, as the plain loop's are.

use super::{Data, LAYERS, MICROBATCHES, RATE, SAMPLES, WIDTH, loss, stack};
use crate::cases::{range, sizes};
use burn::module::{Module, ModuleMapper, Param};
use burn::nn::Linear;
use burn::optim::SgdConfig;
use burn::tensor::{DType, FloatDType, Tensor, activation::tanh};
use burn_pipeline::stage::{LossScale, Precision, SplitBackward};
use burn_pipeline::{Batch, Builder, Pipeline, Size, Stage, StageBox, StageContext};
use pipeline_tests::device::device;

/// Layers that compute in the type of their parameters.
#[derive(Module, Debug)]
struct Halves {
    layers: Vec<Linear>,
}

impl Stage for Halves {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
        let half = |layer: &Linear| FloatDType::from(layer.weight.val().dtype());
        self.layers.iter().fold(x, |x, layer| tanh(layer.forward(x.cast(half(layer)))))
    }
}

fn halves_loss(y: Tensor<2>, wanted: Tensor<2>) -> Tensor<1> {
    loss(y.cast(FloatDType::F32), wanted)
}

struct Round(FloatDType);

impl ModuleMapper for Round {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|value| value.cast(self.0))
    }
}

/// The plain loop's gradient of the input: backwards of scaled losses, added in f32.
fn plain(half: FloatDType, factor: f64, x: &Tensor<2>, wanted: &Tensor<2>) -> Vec<f32> {
    let layers = stack(0..LAYERS, &[], &device().autodiff()).layers;
    let (model, sizes) = (Halves { layers }.map(&mut Round(half)), sizes(SAMPLES, MICROBATCHES));
    let gradients = (0..MICROBATCHES).map(|i| {
        let part = |of: &Tensor<2>| of.clone().slice([range(&sizes, i)]).autodiff();
        let leaf = part(x).require_grad();
        let seed = factor * sizes[i] as f64 / sizes[0] as f64;
        let value = halves_loss(model.forward(leaf.clone(), ()), part(wanted)).mul_scalar(seed);
        leaf.grad(&value.backward()).unwrap().cast(FloatDType::F32)
    });
    let scale = sizes[0] as f64 / SAMPLES as f64 / factor;
    let sum = Tensor::cat(gradients.collect(), 0).mul_scalar(scale);
    sum.into_data().iter::<f32>().collect()
}

fn builder(precision: Precision, trained: &'static [usize]) -> Builder {
    Pipeline::builder()
        .schedule("ZBH1", Size::new(2, MICROBATCHES))
        .devices(vec![device()])
        .optimizer(|| SgdConfig::new().init())
        .input_gradients(true)
        .precision(precision)
        .stages(move |at: &StageContext| {
            let part = Halves { layers: stack(at.layers(LAYERS), trained, &at.device).layers };
            if at.is_last() { StageBox::with_loss(part, halves_loss) } else { StageBox::new(part) }
        })
}

/// NaN equals NaN here.
fn bits(numbers: &[f32]) -> Vec<Option<u32>> {
    numbers.iter().map(|x| (!x.is_nan()).then_some(x.to_bits())).collect()
}

fn f16(initial: f64) -> Precision {
    Precision::f16().loss_scale(LossScale { initial, ..LossScale::default() })
}

#[test]
fn gradients_of_half_precision_stages_are_f32_and_unscaled() {
    let Data { x, wanted, .. } = Data::new(0);
    for (half, precision, factor) in [(FloatDType::BF16, Precision::bf16(), 1.0), (FloatDType::F16, f16(256.0), 256.0)]
    {
        for input in [FloatDType::F32, half] {
            let x = x.clone().cast(input);
            let expected = plain(half, factor, &x, &wanted);
            for trained in [&[][..], &[0, 3]] {
                for split in [SplitBackward::Eager, SplitBackward::Captured] {
                    let mut pipeline = builder(precision.clone(), trained).split(split).build().unwrap();
                    let report = pipeline.accumulate(Batch::new(x.clone()).target(wanted.clone())).unwrap();
                    let got: Tensor<2> = report.input_gradient().unwrap();
                    assert_eq!((got.dtype(), got.dims()), (DType::F32, [SAMPLES, WIDTH]));
                    let got: Vec<f32> = got.into_data().iter::<f32>().collect();
                    assert_eq!(got, expected, "{half:?} of {input:?}, {trained:?} train, {split:?}");
                }
            }
        }
    }
}

#[test]
fn a_step_that_overflows_returns_them_with_the_infinities_of_the_plain_loop() {
    let (Data { x, wanted, .. }, factor) = (Data::new(0), 2f64.powi(24));
    let mut pipeline = builder(f16(factor), &[0, 1, 2, 3]).build().unwrap();
    let report = pipeline.step(Batch::new(x.clone()).target(wanted.clone()), RATE).unwrap();
    assert!(report.skipped.is_some() && report.loss_scale == Some(factor));
    let got: Tensor<2> = report.input_gradient().unwrap();
    let got: Vec<f32> = got.into_data().iter::<f32>().collect();
    assert!(got.iter().any(|x| !x.is_finite()));
    assert_eq!(bits(&got), bits(&plain(FloatDType::F16, factor, &x, &wanted)));
    // The next step has a smaller factor, and says which.
    let report = pipeline.step(Batch::new(x.clone()).target(wanted.clone()), RATE).unwrap();
    assert_eq!(report.loss_scale, Some(factor / 2.0));
    let got: Tensor<2> = report.input_gradient().unwrap();
    let got: Vec<f32> = got.into_data().iter::<f32>().collect();
    assert_eq!(bits(&got), bits(&plain(FloatDType::F16, factor / 2.0, &x, &wanted)));
}

#[test]
fn without_a_precision_they_have_the_type_of_their_tensor() {
    let half = |step: u64| Data::new(step).x.cast(FloatDType::BF16);
    let builder = Pipeline::builder()
        .schedule("1F1B", Size::new(2, MICROBATCHES))
        .devices(vec![device()])
        .input_gradients(true)
        .stages(|at: &StageContext| {
            let part = Halves { layers: stack(at.layers(LAYERS), &[], &at.device).layers };
            if at.is_last() { StageBox::with_loss(part, halves_loss) } else { StageBox::new(part) }
        });
    let report = builder.build().unwrap().accumulate(Batch::new(half(0)).target(Data::new(0).wanted)).unwrap();
    let got: Tensor<2> = report.input_gradient().unwrap();
    assert_eq!((got.dtype(), got.dims()), (DType::BF16, [SAMPLES, WIDTH]));
}
