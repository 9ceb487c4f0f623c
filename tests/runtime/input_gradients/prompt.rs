//! A soft prompt: rows that Burn's optimizer trains by the gradient of an extra, before the words of a frozen model.

use super::{MICROBATCHES, WIDTH};
use crate::cases::noise;
use burn::module::{Module, Param};
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::{Device, Int, Tensor, activation::tanh};
use burn_pipeline::layers::{LayerContext, Model};
use burn_pipeline::stage::{Split, init_seeded};
use burn_pipeline::{Batch, Layer, Pipeline, Sequential, Size};
use pipeline_tests::device::device;
use pipeline_tests::reference::Reference;

const WORDS: usize = 11;
const LENGTH: usize = 3;
const ROWS: usize = 2;
const SAMPLES: usize = 8;
const STEPS: usize = 5;
const RATE: f64 = 3e-2;

#[derive(Module, Debug)]
struct Prompt {
    rows: Param<Tensor<2>>,
}

fn prompt() -> Prompt {
    let rows = Tensor::<1>::from_floats(&*noise(77, ROWS * WIDTH), &device().autodiff()).reshape([ROWS, WIDTH]);
    Prompt { rows: Param::from_tensor(rows) }
}

fn words(device: &Device) -> Embedding {
    init_seeded(1, device, |device| EmbeddingConfig::new(WORDS, WIDTH).init(device)).no_grad()
}

fn linear(layer: usize, device: &Device) -> Linear {
    init_seeded(layer as u64 + 2, device, |device| LinearConfig::new(WIDTH, WIDTH).init(device)).no_grad()
}

/// The prompt's rows before each sample's words.
fn entered(words: &Embedding, (ids, prompt): (Tensor<2, Int>, Tensor<2>)) -> Tensor<3> {
    let [samples, _] = ids.dims();
    Tensor::cat(vec![prompt.unsqueeze::<3>().expand([samples, ROWS, WIDTH]), words.forward(ids)], 1)
}

/// Each position also sees the mean over all.
fn mixed(own: &Linear, x: Tensor<3>) -> Tensor<3> {
    x.clone() + tanh(own.forward(x.clone() + x.mean_dim(1)))
}

fn loss(y: Tensor<3>, wanted: Tensor<2>) -> Tensor<1> {
    (y.mean_dim(1).squeeze_dim::<2>(1) - wanted).square().mean()
}

fn model() -> Model {
    let mixing = |at: &LayerContext| linear(at.position, &at.device);
    Sequential::new()
        .then(Layer::new("words", |at| words(&at.device), entered).extras(["prompt"]))
        .repeat(3, Layer::new("mixed", mixing, mixed))
        .loss(loss)
}

fn data() -> (Tensor<2, Int>, Tensor<2>) {
    let ids = Tensor::<1, Int>::arange(0..(SAMPLES * LENGTH) as i64, &device()).mul_scalar(7);
    let wanted = Tensor::<1>::from_floats(&*noise(5, SAMPLES * WIDTH), &device()).reshape([SAMPLES, WIDTH]);
    (ids.remainder_scalar(WORDS as i64).reshape([SAMPLES, LENGTH]), wanted)
}

/// Losses of the plain loop, and the prompt after it.
fn plain() -> (Vec<f64>, Vec<Vec<f32>>) {
    let (ids, wanted) = data();
    let device = device().autodiff();
    let (words, layers) = (words(&device), [0, 1, 2].map(|layer| linear(layer, &device)));
    let (mut plain, size) = (Reference::new(prompt()), SAMPLES / MICROBATCHES);
    let loss_of = |prompt: &Prompt, i: usize| {
        let ids = ids.clone().narrow(0, i * size, size).autodiff();
        let x = entered(&words, (ids, prompt.rows.val()));
        loss(layers.iter().fold(x, |x, layer| mixed(layer, x)), wanted.clone().narrow(0, i * size, size).autodiff())
    };
    let losses = (0..STEPS).map(|_| plain.step(&[size; MICROBATCHES], RATE, None, loss_of).loss).collect();
    (losses, plain.weights())
}

#[test]
fn a_soft_prompt_trained_by_its_gradient_equals_the_plain_loop() {
    let (losses, expected) = plain();
    assert!(losses[STEPS - 1] < losses[0], "the prompt learns: {losses:?}");
    let (ids, wanted) = data();
    for (schedule, size) in [("1F1B", Size::new(2, MICROBATCHES)), ("ZBH1", Size::new(4, MICROBATCHES))] {
        let builder = Pipeline::builder().layers(model()).schedule(schedule, size).devices(vec![device()]);
        let mut pipeline = builder.input_gradients(true).build().unwrap();
        let (mut prompt, mut optimizer) = (prompt(), AdamWConfig::new().init());
        for loss in &losses {
            let batch = Batch::new(ids.clone()).target(wanted.clone()).extra("prompt", prompt.rows.val().inner());
            let report = pipeline.accumulate(batch.split_extra("prompt", vec![Split::Replicate])).unwrap();
            assert_eq!(report.loss, *loss, "{schedule}");
            let mut gradients = GradientsParams::new();
            gradients.register(prompt.rows.id, report.extra_gradient::<Tensor<2>>("prompt").unwrap());
            prompt = optimizer.step(RATE, prompt, gradients);
        }
        assert!(pipeline_tests::reference::weights(&prompt) == expected, "{schedule}");
    }
}
