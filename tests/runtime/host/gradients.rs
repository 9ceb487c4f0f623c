//! A forward may read host values that change only its gradients and not its outputs; gradients are then still the
//! plain loop's.

use super::model::{LAYERS, SAMPLES, WIDTH, batch, tensor};
use crate::cases::read;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::activation::tanh;
use burn::tensor::{Device, Tensor};
use burn_pipeline::schedule::Size;
use burn_pipeline::stage::{Accumulation, SplitBackward, Stage, StageBox, init_seeded};
use burn_pipeline::train::{Pipeline, StageContext};
use pipeline_tests::reference::{Reference, whole};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const RATE: f64 = 1e-2;
const STEPS: usize = 4;
const MICROBATCHES: usize = 8;

/// Detaches its weights in every third forward and, if its index is even, when the host says so.
#[derive(Module, Debug)]
struct Layer {
    linear: Linear,
    index: usize,
    #[module(skip)]
    forwards: Arc<AtomicUsize>,
}

#[derive(Module, Debug)]
struct Part {
    layers: Vec<Layer>,
    #[module(skip)]
    frozen: Arc<AtomicBool>,
}

impl Part {
    fn new(at: &StageContext, frozen: &Arc<AtomicBool>) -> Self {
        let layer = |index: usize| Layer {
            linear: init_seeded(index as u64, &at.device, |device| LinearConfig::new(WIDTH, WIDTH).init(device)),
            index,
            forwards: Arc::new(AtomicUsize::new(index)),
        };
        Self { layers: at.layers(LAYERS).map(layer).collect(), frozen: frozen.clone() }
    }
}

impl Stage for Part {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
        self.layers.iter().fold(x, |x, layer| {
            let before = layer.forwards.fetch_add(1, Ordering::Relaxed);
            let y = tanh(layer.linear.forward(x.clone()));
            let frozen = before % 3 == 2 || layer.index % 2 == 0 && self.frozen.load(Ordering::Relaxed);
            x + if frozen { y.detach() } else { y }
        })
    }
}

fn loss(y: Tensor<2>, target: Tensor<2>) -> Tensor<1> {
    (y - target).square().mean()
}

/// Losses and weights after each step, of the plain loop.
fn plain() -> Vec<(f64, Vec<Vec<f32>>)> {
    let frozen = Arc::default();
    let mut reference = Reference::new(Part::new(&whole(), &frozen));
    let rows = SAMPLES / MICROBATCHES;
    let step = |step: usize| {
        frozen.store(step == 2, Ordering::Relaxed);
        let (x, target) = (tensor(2 * step, SAMPLES), tensor(2 * step + 1, SAMPLES));
        let cut = |x: &Tensor<2>, i: usize| x.clone().narrow(0, i * rows, rows).autodiff();
        let given = reference
            .step(&[rows; MICROBATCHES], RATE, None, |model, i| loss(model.forward(cut(&x, i), ()), cut(&target, i)));
        (given.loss, reference.weights())
    };
    (0..STEPS).map(step).collect()
}

#[test]
fn a_host_value_that_changes_gradients_alone_changes_those_of_its_microbatch() {
    let expected = plain();
    for (schedule, chunks) in [("1F1B", 1), ("Interleaved1F1B", 2), ("ZBH1", 1), ("ZBVZeroBubble", 2)] {
        let captured = SplitBackward::Captured;
        for (split, recomputed) in [(SplitBackward::Eager, false), (captured, false), (captured, true)] {
            let (frozen, size) = (Arc::default(), Size::new(2, MICROBATCHES).with_chunks(chunks));
            let read_here = Arc::clone(&frozen);
            let builder = Pipeline::builder().schedule(schedule, size).devices(vec![Device::flex()]).split(split);
            let builder = builder.optimizer(|| AdamWConfig::new().init()).accumulation(Accumulation::Ordered);
            let builder = builder.stages(move |at| {
                let part = Part::new(at, &read_here);
                let stage = if at.is_last() { StageBox::with_loss(part, loss) } else { StageBox::new(part) };
                stage.recomputed(recomputed)
            });
            let mut pipeline = builder.build().unwrap();
            let step = |step: usize| {
                frozen.store(step == 2, Ordering::Relaxed);
                let loss = pipeline.step(batch(step), RATE).unwrap().loss;
                (loss, pipeline.weights().unwrap().iter().flatten().map(read).collect())
            };
            let given: Vec<(f64, Vec<Vec<f32>>)> = (0..STEPS).map(step).collect();
            assert_eq!(given, expected, "{schedule}, {split:?}, recomputed: {recomputed}");
        }
    }
}
