//! The used outputs differ from microbatch to microbatch and from step to step: each weight has a gradient, or
//! none, exactly as on one device. AdamW tells the difference, since weights with a zero gradient still decay.

use crate::cases::{noise, read};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::activation::tanh;
use burn::tensor::{Device, Tensor, TensorData};
use burn_pipeline::boundary;
use burn_pipeline::execute::ExecuteError;
use burn_pipeline::payload::Validate;
use burn_pipeline::schedule::Size;
use burn_pipeline::stage::{Accumulation, Batch, SplitBackward, Stage, StageBox, init_seeded};
use burn_pipeline::train::{Builder, Pipeline, StageContext};
use pipeline_tests::reference::{Reference, whole};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const WIDTH: usize = 4;
const LAYERS: usize = 4;
const ROWS: usize = 2;
const RATE: f64 = 1e-2;

/// Which of the model's two outputs the loss uses.
#[derive(Debug, Clone)]
enum Wanted {
    First(Tensor<2>),
    Second(Tensor<2>),
    Both(Tensor<2>),
}
boundary!(
    enum Wanted {
        First(wanted),
        Second(wanted),
        Both(wanted),
    }
);

/// The outputs that every step's microbatches use: `1`, `2`, or `b` for both.
const STEPS: [&str; 5] = ["12b", "111", "b22", "222", "1bb"];

/// Two parallel branches.
#[derive(Module, Debug)]
struct Layer {
    first: Linear,
    second: Linear,
    /// The number of forwards so far, in a model whose forward changes its operations.
    #[module(skip)]
    calls: Option<Arc<AtomicUsize>>,
}

impl Layer {
    fn forward(&self, (a, b): (Tensor<2>, Tensor<2>)) -> (Tensor<2>, Tensor<2>) {
        let calls = self.calls.as_ref().map_or(0, |calls| calls.fetch_add(1, Ordering::Relaxed));
        // The same numbers and gradients either way.
        let twice = |x: Tensor<2>| if calls.is_multiple_of(2) { x.mul_scalar(2.0) } else { x.clone() + x };
        (twice(tanh(self.first.forward(a))), twice(tanh(self.second.forward(b))))
    }
}

#[derive(Module, Debug)]
struct Part {
    layers: Vec<Layer>,
}

impl Part {
    fn new(at: &StageContext, unsteady: bool) -> Self {
        let linear = |seed: usize| {
            init_seeded(seed as u64, &at.device, |device: &Device| LinearConfig::new(WIDTH, WIDTH).init(device))
        };
        let calls = || unsteady.then(Arc::default);
        let layer = |index: usize| Layer { first: linear(10 + index), second: linear(20 + index), calls: calls() };
        Self { layers: at.layers(LAYERS).map(layer).collect() }
    }
}

impl Stage for Part {
    type Input = (Tensor<2>, Tensor<2>);
    type Extra = ();
    type Output = (Tensor<2>, Tensor<2>);

    fn forward(&self, input: Self::Input, (): ()) -> Self::Output {
        self.layers.iter().fold(input, |input, layer| layer.forward(input))
    }
}

fn loss((a, b): (Tensor<2>, Tensor<2>), wanted: Wanted) -> Tensor<1> {
    let off = |x: Tensor<2>, y: Tensor<2>| (x - y).square().mean();
    match wanted {
        Wanted::First(y) => off(a, y),
        Wanted::Second(y) => off(b, y),
        Wanted::Both(y) => off(a, y.clone()) + off(b, y),
    }
}

fn rows(seed: usize) -> Tensor<2> {
    Tensor::from_data(TensorData::new(noise(seed as u64, ROWS * WIDTH), [ROWS, WIDTH]), &Device::flex())
}

/// A microbatch of a step: its input, and the wanted output.
fn piece(step: usize, place: usize) -> ((Tensor<2>, Tensor<2>), Wanted) {
    let seed = 100 * step + 10 * place;
    let wanted = match &STEPS[step][place..=place] {
        "1" => Wanted::First(rows(seed)),
        "2" => Wanted::Second(rows(seed)),
        _ => Wanted::Both(rows(seed)),
    };
    ((rows(seed + 1), rows(seed + 2)), wanted)
}

fn batch(step: usize) -> Batch {
    let cut = (0..STEPS[step].len()).map(|place| piece(step, place));
    Batch::from_microbatches(cut.map(|(input, wanted)| Batch::new(input).target(wanted)).collect())
}

fn builder(schedule: &str, chunks: usize, unsteady: bool) -> Builder {
    let size = Size { ranks: 2, chunks, microbatches: 3 };
    let stage = move |at: &StageContext| match at.is_last() {
        true => StageBox::with_loss(Part::new(at, unsteady), loss),
        false => StageBox::new(Part::new(at, unsteady)),
    };
    let builder = Pipeline::builder().schedule(schedule, size).devices(vec![Device::flex()]);
    builder.stages(stage).optimizer(|| AdamWConfig::new().init()).accumulation(Accumulation::Ordered)
}

/// The loss of each step of the plain loop, and the weights after it.
fn plain() -> Vec<(f64, Vec<Vec<f32>>)> {
    let mut reference = Reference::new(Part::new(&whole(), false));
    let step = |step| {
        let taken = reference.step(&[ROWS; 3], RATE, None, |model, i| {
            let ((a, b), wanted) = piece(step, i);
            let wanted = match wanted {
                Wanted::First(y) => Wanted::First(y.autodiff()),
                Wanted::Second(y) => Wanted::Second(y.autodiff()),
                Wanted::Both(y) => Wanted::Both(y.autodiff()),
            };
            loss(model.forward((a.autodiff(), b.autodiff()), ()), wanted)
        });
        (taken.loss, reference.weights())
    };
    (0..STEPS.len()).map(step).collect()
}

/// Asserts that losses and weights of all steps are those of the plain loop.
fn assert_parity(pipeline: &mut Pipeline, plain: &[(f64, Vec<Vec<f32>>)], place: &str) {
    for (step, (loss, expected)) in plain.iter().enumerate() {
        let report = pipeline.step(batch(step), RATE).unwrap();
        assert_eq!(report.loss, *loss, "loss: {place}, step {step}");
        let weights: Vec<Vec<f32>> = pipeline.weights().unwrap().iter().flatten().map(read).collect();
        assert_eq!(weights, *expected, "weights: {place}, step {step}");
    }
}

const SCHEDULES: [(&str, usize); 4] = [("GPipe", 1), ("1F1B", 1), ("Interleaved1F1B", 2), ("ZBV", 2)];

#[test]
fn weights_step_and_rest_as_on_one_device_whatever_each_microbatch_uses() {
    let plain = plain();
    for (schedule, chunks) in SCHEDULES {
        for split in [SplitBackward::Eager, SplitBackward::Auto, SplitBackward::Captured] {
            let mut pipeline = builder(schedule, chunks, false).split(split).build().unwrap();
            assert_parity(&mut pipeline, &plain, &format!("{schedule}, {split:?}"));
        }
    }
}

#[test]
fn a_stage_whose_forward_is_other_operations_each_time_gets_no_zeros_either() {
    let plain = plain();
    for (schedule, chunks) in SCHEDULES {
        for split in [SplitBackward::Auto, SplitBackward::Captured] {
            let mut pipeline = builder(schedule, chunks, true).split(split).build().unwrap();
            assert_parity(&mut pipeline, &plain, &format!("{schedule}, {split:?}"));
        }
    }
}

#[test]
fn validation_says_where_a_gradient_that_was_there_is_missing() {
    let mut pipeline = builder("GPipe", 1, false).validate(Validate::EveryMicrobatch).build().unwrap();
    // The first microbatch, from which the metadata are learned, uses both outputs; the others do not.
    let error = pipeline.step(batch(2), RATE).unwrap_err();
    let of_rank = error.of_rank().unwrap();
    let ExecuteError::Stage { stage, microbatch, source, .. } = of_rank.cause() else { panic!("{error}") };
    assert_eq!((stage.index(), *microbatch), (1, 1), "{error}");
    assert!(source.to_string().contains("of the stage's input's gradients: expected tag 1, got tag 0"), "{source}");
}
