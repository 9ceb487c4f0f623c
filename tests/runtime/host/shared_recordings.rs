//! Forwards that share a recording (`Tuning::record_every`): the same numbers from fewer runs of the user's code, and
//! an error once a recorded forward differs.

use super::model::{WIDTH, tensor};
use crate::cases::read;
use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig, Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::activation::{gelu, tanh};
use burn::tensor::{Device, Tensor};
use burn_pipeline::execute::Tuning;
use burn_pipeline::layers::{ForwardContext, Layer, LayerContext, Sequential};
use burn_pipeline::schedule::Size;
use burn_pipeline::stage::{Accumulation, Batch, SplitBackward, Stage, StageBox, StageError, init_seeded};
use burn_pipeline::train::{Builder, Pipeline, StageContext};
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const RANKS: usize = 2;
const MICROBATCHES: usize = 4;

/// What the stages read, and how often they ran.
#[derive(Debug, Default)]
struct Host {
    smooth: AtomicBool,
    forwards: AtomicUsize,
}

#[derive(Module, Debug)]
struct Part {
    linear: Linear,
    dropout: Dropout,
    #[module(skip)]
    host: Arc<Host>,
    #[module(skip)]
    negated: bool,
}

impl Stage for Part {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
        self.host.forwards.fetch_add(1, Ordering::Relaxed);
        let y = self.dropout.forward(self.linear.forward(x));
        let y = if self.host.smooth.load(Ordering::Relaxed) { gelu(y) } else { tanh(y) };
        if self.negated { -y } else { y }
    }
}

fn builder(host: &Arc<Host>, record_every: usize) -> Builder {
    let host = host.clone();
    let make = move |at: &StageContext| {
        let linear =
            init_seeded(70 + at.index as u64, &at.device, |device| LinearConfig::new(WIDTH, WIDTH).init(device));
        let part = Part { linear, dropout: DropoutConfig::new(0.3).init(), host: host.clone(), negated: false };
        match at.is_last() {
            true => StageBox::with_loss(part, |y: Tensor<2>, (target, power): (Tensor<2>, Option<f64>)| {
                (y - target).powf_scalar(power.unwrap_or(2.0)).mean()
            }),
            false => StageBox::new(part),
        }
    };
    Pipeline::builder()
        .schedule("ZBH1", Size::new(RANKS, MICROBATCHES))
        .devices(vec![Device::flex()])
        .stages(make)
        .optimizer(|| AdamWConfig::new().init())
        .accumulation(Accumulation::Ordered)
        .split(SplitBackward::Captured)
        .seed(3)
        .tuning(Tuning { record_every, ..Tuning::default() })
}

/// A batch with as many rows for each microbatch.
fn batch(step: usize, rows: usize, power: Option<f64>) -> Batch {
    let samples = MICROBATCHES * rows;
    Batch::new(tensor(2 * step, samples)).target((tensor(2 * step + 1, samples), power))
}

fn weights(pipeline: &mut Pipeline) -> Vec<Vec<f32>> {
    pipeline.weights().unwrap().iter().flatten().map(read).collect()
}

/// Losses and weights of some steps whose shapes change, and how often each stage ran.
fn trained(record_every: usize) -> (Vec<f64>, Vec<Vec<f32>>, usize) {
    let host = Arc::new(Host::default());
    let mut pipeline = builder(&host, record_every).build().unwrap();
    let before = host.forwards.load(Ordering::Relaxed);
    let mut step = |step: usize| pipeline.step(batch(step, 1 + step % 2, None), 1e-2).unwrap().loss;
    let losses = (0..8).map(&mut step).collect();
    (losses, weights(&mut pipeline), (host.forwards.load(Ordering::Relaxed) - before) / RANKS)
}

#[test]
fn numbers_and_draws_are_the_same_and_the_user_s_code_runs_less() {
    let every = trained(1);
    assert_eq!(every.2, 8 * MICROBATCHES);
    // Each of two shapes has 16 forwards, of which the first, sixth, eleventh and sixteenth are recorded.
    for (record_every, runs) in [(5, 8), (1000, 2)] {
        let shared = trained(record_every);
        assert_eq!((&shared.0, &shared.1), (&every.0, &every.1), "{record_every}");
        assert_eq!(shared.2, runs, "{record_every}");
    }
}

#[test]
fn a_forward_that_changed_is_refused_by_name_when_it_is_next_recorded() {
    let host = Arc::new(Host::default());
    let mut pipeline = builder(&host, 2 * MICROBATCHES).build().unwrap();
    let mut step = |step| pipeline.step(batch(step, 1, None), 1e-2);
    step(0).unwrap();
    host.smooth.store(true, Ordering::Relaxed);
    step(1).unwrap();
    let error = step(2).unwrap_err();
    let causes = std::iter::successors(Some(&error as &dyn Error), |&error| error.source());
    let changed = causes.filter_map(|cause| cause.downcast_ref::<StageError>()).next();
    let Some(StageError::Changed { difference, forwards: 8 }) = changed else { panic!("{error:?}") };
    assert!(difference.contains("operation"), "{difference}");
    assert!(
        error.to_string().contains("the 7 forwards of these shapes before this one")
            && error.to_string().contains("record_every: 1")
    );
    // It stays refused until the host has what was recorded.
    step(2).unwrap_err();
    host.smooth.store(false, Ordering::Relaxed);
    step(2).unwrap();
}

#[test]
fn a_forward_with_a_plain_value_is_always_recorded() {
    let losses = |record_every| {
        let host = Arc::new(Host::default());
        let mut pipeline = builder(&host, record_every).build().unwrap();
        let powers = [Some(2.0), Some(4.0), None, Some(4.0)];
        powers.map(|power| pipeline.step(batch(0, 1, power), 1e-2).unwrap().loss)
    };
    assert_eq!(losses(1000), losses(1));
}

#[test]
fn a_replaced_module_is_recorded_anew() {
    let losses = |record_every| {
        let host = Arc::new(Host::default());
        let mut pipeline = builder(&host, record_every).build().unwrap();
        let before = pipeline.step(batch(0, 1, None), 1e-2).unwrap().loss;
        pipeline.replace_module(0, |part: Part, _| Part { negated: true, ..part }).unwrap();
        [before, pipeline.step(batch(0, 1, None), 1e-2).unwrap().loss]
    };
    assert_eq!(losses(1000), losses(1));
}

#[test]
fn a_layer_that_knows_its_microbatch_is_always_recorded() {
    let losses = |record_every| {
        let linear =
            |at: &LayerContext| init_seeded(5, &at.device, |device| LinearConfig::new(WIDTH, WIDTH).init(device));
        let scaled =
            |linear: &Linear, (x, at): (Tensor<2>, ForwardContext)| linear.forward(x) * (1 + at.microbatch()) as f64;
        let model = Sequential::new()
            .then(Layer::new("plain", linear, |linear: &Linear, x: Tensor<2>| tanh(linear.forward(x))))
            .then(Layer::new("scaled", linear, scaled).with_context())
            .loss(|y: Tensor<2>, target: Tensor<2>| (y - target).square().mean());
        let builder = Pipeline::builder()
            .layers(model)
            .schedule("ZBH1", Size::new(RANKS, MICROBATCHES))
            .devices(vec![Device::flex()])
            .optimizer(|| AdamWConfig::new().init())
            .split(SplitBackward::Captured)
            .tuning(Tuning { record_every, ..Tuning::default() });
        let mut pipeline = builder.build().unwrap();
        [0, 1, 2].map(|step| {
            let batch = Batch::new(tensor(2 * step, MICROBATCHES)).target(tensor(2 * step + 1, MICROBATCHES));
            pipeline.step(batch, 1e-2).unwrap().loss
        })
    };
    assert_eq!(losses(1000), losses(1));
}
