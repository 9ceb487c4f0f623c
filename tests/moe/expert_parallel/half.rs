//! Experts over replicas and groups in half precision, with the router kept in f32, compared with the guide's plain
//! loop over the whole layer.
//!
//! An expert's matmuls run over the rows of all replicas, so its gradients over two microbatches are rounded once and
//! not twice: losses agree to 2^-8 of their size, as far as bf16 goes, and weights to 2^-8 of their largest change.

use burn::module::{Module, ParamGroup};
use burn::nn::{Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{DType, Device, FloatDType, Tensor};
use burn_pipeline::schedule::Size;
use burn_pipeline::stage::{LossScale, Names, Precision, init_seeded};
use burn_pipeline::{Batch, Pipeline, Stage, StageBox, StageContext};
use burn_pipeline_moe::layers::{MixtureOfExperts, MixtureOfExpertsConfig};
use burn_pipeline_moe::router::Capacity;
use pipeline_tests::device::device;
use pipeline_tests::noise::noise;

const WIDTH: usize = 8;
const SEQ: usize = 6;
const LAYERS: usize = 2;
const SAMPLES: usize = 8;
const MICROBATCHES: usize = 4;
const STEPS: usize = 3;
const RATE: f64 = 0.5;
/// Half a unit in the last place of bf16, twice.
const CLOSE: f64 = 1.0 / 256.0;

/// The guide's own plain loop.
#[allow(unreachable_pub, reason = "a user copies it as it is")]
#[path = "../../../burn-pipeline/src/_guide/half_precision.rs"]
mod written;

/// A matrix, and a mixture of experts beside the residual stream.
#[derive(Module, Debug)]
struct Layer {
    linear: Linear,
    mixture: MixtureOfExperts,
}

#[derive(Module, Debug)]
struct Part {
    layers: Vec<Layer>,
}

impl Part {
    fn new(layers: std::ops::Range<usize>, capacity: Capacity, device: &Device) -> Self {
        let mixture = MixtureOfExpertsConfig::new(WIDTH, 4, 4).with_shared(2).with_capacity(capacity);
        let layer = |layer| {
            init_seeded(layer as u64, device, |device| Layer {
                linear: LinearConfig::new(WIDTH, WIDTH).init(device),
                mixture: mixture.init(device),
            })
        };
        Self { layers: layers.map(layer).collect() }
    }

    fn run(&self, x: Tensor<3>) -> Tensor<3> {
        self.layers.iter().fold(x, |x, layer| {
            let x = layer.linear.forward(x.cast(FloatDType::from(layer.linear.weight.val().dtype())));
            // Large enough that the experts matter.
            x.clone() + layer.mixture.forward(x).0.mul_scalar(64)
        })
    }
}

impl Stage for Part {
    type Input = Tensor<3>;
    type Extra = ();
    type Output = Tensor<3>;

    fn forward(&self, x: Tensor<3>, (): ()) -> Tensor<3> {
        self.run(x)
    }

    fn skip_capture(&self) -> Option<&'static str> {
        self.layers.iter().find_map(|layer| layer.mixture.skip_capture())
    }
}

fn loss(y: Tensor<3>, target: Tensor<3>) -> Tensor<1> {
    (y.cast(FloatDType::F32) - target).square().mean()
}

fn data(step: usize) -> [Tensor<3>; 2] {
    let values = |seed| noise(seed + step as u64, SAMPLES * SEQ * WIDTH);
    [1, 51].map(|seed| Tensor::<1>::from_floats(&*values(seed), &device()).reshape([SAMPLES, SEQ, WIDTH]))
}

fn keeps(path: &str) -> bool {
    path.contains("router")
}

/// Losses, and weights in model order.
type Trained = (Vec<f64>, Vec<Vec<f32>>);

fn plain(half: FloatDType, factor: f64, capacity: Capacity) -> Trained {
    let mut masters = Part::new(0..LAYERS, capacity, &device().autodiff());
    let (mut optimizer, size) = (SgdConfig::new().init(), SAMPLES / MICROBATCHES);
    let step = |step| {
        let [x, target] = data(step);
        let loss = |copies: &Part, i: usize| {
            let part = |tensor: &Tensor<3>| tensor.clone().narrow(0, i * size, size).autodiff();
            loss(copies.run(part(&x)), part(&target))
        };
        let how = (half, factor, MICROBATCHES, 1);
        let (stepped, mean) = written::step(masters.clone(), &mut optimizer, RATE, how, keeps, loss);
        masters = stepped;
        mean
    };
    let losses = (0..STEPS).map(step).collect();
    (losses, pipeline_tests::reference::weights(&masters))
}

fn piped(precision: Option<Precision>, capacity: Capacity, (ranks, replicas, members): super::Grid) -> Trained {
    let builder = Pipeline::builder()
        .schedule("1F1B", Size::new(ranks, MICROBATCHES / replicas))
        .devices(vec![device()])
        .data_parallel(replicas)
        .tensor_parallel(members)
        .optimizer(|| SgdConfig::new().init())
        .stages(move |at: &StageContext| {
            let mut part = Part::new(at.layers(LAYERS), capacity, &at.device);
            for layer in &mut part.layers {
                let mixture = layer.mixture.clone().cut(&at.group);
                layer.mixture = if at.replicas.size() > 1 { mixture.expert_parallel(&at.replicas) } else { mixture };
            }
            let names = Names::default().layers_from("layers", at.layers(LAYERS).start);
            let stage = if at.is_last() { StageBox::with_loss(part, loss) } else { StageBox::new(part) };
            stage.named(names)
        });
    let mut pipeline = match precision {
        Some(precision) => builder.precision(precision).build().unwrap(),
        None => builder.build().unwrap(),
    };
    let step = |step| {
        let [x, target] = data(step);
        pipeline.step(Batch::new(x).target(target), RATE).unwrap().loss
    };
    let losses = (0..STEPS).map(step).collect();
    let read = |weight: &burn_pipeline::payload::AnyTensor| {
        assert_eq!(weight.dtype(), DType::F32, "masters are f32");
        weight.to_data().unwrap().iter::<f32>().collect()
    };
    (losses, pipeline.weights().unwrap().iter().flatten().map(read).collect())
}

/// The largest difference of losses, relative to them; and of each weight, relative to its largest change since the
/// start.
fn apart(got: &Trained, expected: &Trained, capacity: Capacity) -> [f64; 2] {
    let losses = got.0.iter().zip(&expected.0).map(|(a, b)| (a - b).abs() / b).fold(0.0, f64::max);
    let start = pipeline_tests::reference::weights(&Part::new(0..LAYERS, capacity, &device().autodiff()));
    assert_eq!(got.1.len(), expected.1.len());
    let largest = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from((a - b).abs())).fold(0.0, f64::max);
    let weights = got.1.iter().zip(&expected.1).zip(&start);
    let weights = weights.map(|((got, expected), start)| largest(got, expected) / largest(expected, start));
    [losses, weights.fold(0.0, f64::max)]
}

#[test]
fn experts_over_replicas_and_groups_in_half_precision_train_as_the_written_plain_loop() {
    for (half, factor) in [(FloatDType::BF16, 1.0), (FloatDType::F16, 1024.0)] {
        for capacity in [Capacity::Dropless, Capacity::Factor(0.7)] {
            let expected = plain(half, factor, capacity);
            for grid in [(1, 1, 1), (1, 2, 1), (2, 2, 1), (1, 1, 2), (2, 2, 2)] {
                let made = if half == FloatDType::BF16 { Precision::bf16() } else { Precision::f16() };
                let scale = LossScale { initial: factor, ..LossScale::default() };
                let made = made.keep(ParamGroup::from_predicate("router")).loss_scale(scale);
                let got = piped(Some(made), capacity, grid);
                let of = format!("{half:?}, {capacity:?}, {grid:?}");
                let [losses, weights] = apart(&got, &expected, capacity);
                println!("{of}: losses {losses:.1e}, weights {weights:.1e} apart");
                assert!(losses < CLOSE && weights < CLOSE, "{of}: losses {losses:e}, weights {weights:e} apart");
                assert!(grid != (1, 1, 1) || got == expected, "{of}: one rank has other bits");
            }
            let [losses, weights] = apart(&piped(None, capacity, (1, 1, 1)), &expected, capacity);
            assert!(weights > 0.0 && losses < 0.1, "f32 is {losses:e} and {weights:e} apart");
        }
    }
}
