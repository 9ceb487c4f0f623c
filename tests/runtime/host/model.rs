//! A model whose forward and loss read all kinds of host values, which the host changes between steps.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::{gelu, tanh};
use burn::tensor::{Device, Tensor, TensorData};
use burn_pipeline::stage::{Batch, Stage, StageBox, init_seeded};
use burn_pipeline::train::StageContext;
use pipeline_tests::noise::noise;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

pub(super) const WIDTH: usize = 4;
pub(super) const LAYERS: usize = 8;
pub(super) const SAMPLES: usize = 16;

/// The host's values beside the model, which it changes.
#[derive(Debug, Default)]
pub(super) struct Host {
    heat: AtomicU32,
    smooth: AtomicBool,
    loss_weight: AtomicU32,
    shift: Mutex<Vec<f32>>,
}

impl Host {
    /// Sets the values of a step.
    pub(super) fn set(&self, step: usize) {
        let value = |start: f32, rate: f32| (start + rate * step as f32).to_bits();
        self.heat.store(value(1.0, 0.25), Ordering::Relaxed);
        self.loss_weight.store(value(2.0, -0.25), Ordering::Relaxed);
        self.smooth.store(step % 2 == 1, Ordering::Relaxed);
        *self.shift.lock().unwrap() = noise(90 + step as u64 / 2, WIDTH);
    }
}

#[derive(Module, Debug)]
pub(super) struct Layer {
    linear: Linear,
    /// Annealed after each step.
    scale: f64,
    /// Every third forward of a layer that counts skips the layer.
    #[module(skip)]
    calls: Option<Arc<AtomicUsize>>,
}

/// Some of the model's layers.
#[derive(Module, Debug)]
pub(super) struct Part {
    layers: Vec<Layer>,
    #[module(skip)]
    host: Arc<Host>,
}

impl Part {
    pub(super) fn new(at: &StageContext, host: &Arc<Host>, counts: bool) -> Self {
        let layer = |index: usize| Layer {
            linear: init_seeded(900 + index as u64, &at.device, |device| LinearConfig::new(WIDTH, WIDTH).init(device)),
            scale: 1.0,
            calls: counts.then(|| Arc::new(AtomicUsize::new(index))),
        };
        Self { layers: at.layers(LAYERS).map(layer).collect(), host: host.clone() }
    }
}

impl Stage for Part {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
        let heat = f32::from_bits(self.host.heat.load(Ordering::Relaxed));
        let smooth = self.host.smooth.load(Ordering::Relaxed);
        self.layers.iter().fold(x, |x, layer| {
            let calls = layer.calls.as_ref().map_or(0, |calls| calls.fetch_add(1, Ordering::Relaxed));
            if calls % 3 == 2 {
                return x;
            }
            let y = layer.linear.forward(x.clone()).mul_scalar(heat * layer.scale as f32);
            x + if smooth { gelu(y) } else { tanh(y) }
        })
    }

    fn after_step(mut self, _: &[Vec<f64>]) -> Self {
        self.layers.iter_mut().for_each(|layer| layer.scale *= 0.9);
        self
    }
}

/// The loss, which reads a weight and a tensor that the host replaces.
pub(super) fn loss(host: &Host, y: Tensor<2>, target: Tensor<2>) -> Tensor<1> {
    let weight = f32::from_bits(host.loss_weight.load(Ordering::Relaxed));
    let shift = TensorData::new(host.shift.lock().unwrap().clone(), [1, WIDTH]);
    let shift = Tensor::from_data(shift, &y.device());
    (y + shift - target).square().mean().mul_scalar(weight)
}

pub(super) fn stage(at: &StageContext, host: &Arc<Host>, counts: bool) -> StageBox {
    let (part, host) = (Part::new(at, host, counts), host.clone());
    match at.is_last() {
        true => StageBox::with_loss(part, move |y, target: Tensor<2>| loss(&host, y, target)),
        false => StageBox::new(part),
    }
}

pub(super) fn tensor(seed: usize, samples: usize) -> Tensor<2> {
    Tensor::from_data(TensorData::new(noise(seed as u64, samples * WIDTH), [samples, WIDTH]), &Device::flex())
}

pub(super) fn batch(step: usize) -> Batch {
    Batch::new(tensor(2 * step, SAMPLES)).target(tensor(2 * step + 1, SAMPLES))
}
