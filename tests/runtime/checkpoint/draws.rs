//! Random numbers, running statistics and frozen weights come back as well.

use super::{Folder, RATE};
use crate::cases::noise;
use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Tensor, TensorData};
use burn_pipeline::schedule::{Size, by_name};
use burn_pipeline::stage::{Accumulation, Batch, Names, SplitBackward, Stage, StageBox, init_seeded};
use burn_pipeline::train::{Builder, Checkpoints, Pipeline, StageContext};

const WIDTH: usize = 6;
const SAMPLES: usize = 8;

/// A layer with noise, a norm that counts along, and a weight that is not trained.
#[derive(Module, Debug)]
struct Noisy {
    linear: Linear,
    frozen: Linear,
    norm: BatchNorm,
    dropout: Dropout,
}

impl Stage for Noisy {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
        let [rows, width] = x.dims();
        let hidden = self.frozen.forward(self.linear.forward(x.clone()));
        let normed: Tensor<3> = self.norm.forward(hidden.reshape([rows, width, 1]));
        x + self.dropout.forward(normed.reshape([rows, width]))
    }
}

fn stage(at: &StageContext) -> StageBox {
    let noisy = init_seeded(at.index as u64, &at.device, |device| Noisy {
        linear: LinearConfig::new(WIDTH, WIDTH).init(device),
        frozen: LinearConfig::new(WIDTH, WIDTH).init(device).no_grad(),
        norm: BatchNormConfig::new(WIDTH).init(device),
        dropout: DropoutConfig::new(0.5).init(),
    });
    let index = at.index;
    let names = Names::default().renamed(move |path| format!("{index}.{path}"));
    let loss = |y: Tensor<2>, target: Tensor<2>| (y - target).square().mean();
    if at.is_last() { StageBox::with_loss(noisy, loss).named(names) } else { StageBox::new(noisy).named(names) }
}

fn builder(family: &str) -> Builder {
    let size = Size::new(2, 4).with_chunks(if family == "ZBVZeroBubble" { 2 } else { 1 });
    let builder = Pipeline::builder().schedule(by_name(family).unwrap(), size).devices(vec![Device::flex()]);
    let builder = builder.stages(stage).optimizer(|| AdamWConfig::new().init());
    builder.accumulation(Accumulation::Ordered).split(SplitBackward::Eager)
}

fn batch(step: usize) -> Batch {
    let noise = |seed| TensorData::new(noise(seed, SAMPLES * WIDTH), [SAMPLES, WIDTH]);
    let tensor = |seed| Tensor::<2>::from_data(noise(seed), &Device::flex());
    Batch::new(tensor(2 * step as u64)).target(tensor(2 * step as u64 + 1))
}

fn losses(pipeline: &mut Pipeline, steps: std::ops::Range<usize>) -> Vec<f64> {
    steps.map(|step| pipeline.step(batch(step), RATE).unwrap().loss).collect()
}

fn held_out(pipeline: &mut Pipeline) -> f64 {
    pipeline.eval(batch(99)).unwrap().loss.unwrap()
}

#[test]
fn a_seeded_job_that_is_taken_up_again_draws_what_it_would_have_drawn() {
    let folder = Folder::new("draws");
    let mut whole = builder("1F1B").seed(7).build().unwrap();
    let (expected, evaluated) = (losses(&mut whole, 0..6), held_out(&mut whole));
    let checkpoints = Checkpoints::new(&*folder);
    let mut first = builder("1F1B").seed(7).build().unwrap();
    assert_eq!(losses(&mut first, 0..3), expected[..3]);
    first.save(&checkpoints, &()).unwrap();
    // The seed comes with the checkpoint, and the schedule makes no difference to what is drawn.
    for family in ["1F1B", "GPipe"] {
        let mut second = builder(family).build().unwrap();
        second.load(&checkpoints.latest().unwrap()).unwrap();
        assert_eq!(losses(&mut second, 3..6), expected[3..], "{family}");
        assert_eq!(held_out(&mut second), evaluated, "running statistics, {family}");
    }
    let mut other = builder("1F1B").seed(8).build().unwrap();
    assert_ne!(losses(&mut other, 0..3), expected[..3]);
}

#[test]
fn frozen_weights_and_running_statistics_are_among_what_is_saved() {
    let folder = Folder::new("draws-buffers");
    let mut pipeline = builder("GPipe").seed(1).build().unwrap();
    losses(&mut pipeline, 0..2);
    let checkpoints = Checkpoints::new(&*folder);
    pipeline.save(&checkpoints, &()).unwrap();
    let checkpoint = checkpoints.latest().unwrap();
    let entry = |name: &str| checkpoint.parameters().iter().find(|entry| entry.names == [name]).unwrap();
    for name in ["1.frozen.weight", "1.norm.running_mean", "0.norm.running_var"] {
        assert!(entry(name).state.is_empty(), "{name}");
    }
    let kept: Vec<&String> = entry("0.linear.weight").state.keys().collect();
    assert!(kept.iter().any(|field| field.contains("moment")), "{kept:?}");
}
