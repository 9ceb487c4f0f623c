//! A model whose forward draws random numbers and updates running statistics, for tests that require identical
//! results all the same.

use crate::device::device;
use crate::noise::noise;
use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Tensor, TensorData};
use burn_pipeline::schedule::Size;
use burn_pipeline::stage::{Accumulation, Batch, Names, SplitBackward, Stage, StageBox, init_seeded};
use burn_pipeline::train::{Builder, Pipeline, StageContext};

const WIDTH: usize = 6;
const SAMPLES: usize = 8;

/// A layer with noise, a norm with running statistics, and a weight that is not trained.
#[derive(Module, Debug)]
pub struct Noisy {
    linear: Linear,
    frozen: Linear,
    norm: Option<BatchNorm>,
    dropout: Dropout,
}

impl Stage for Noisy {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
        let [rows, width] = x.dims();
        let hidden = self.frozen.forward(self.linear.forward(x.clone()));
        let hidden = match &self.norm {
            Some(norm) => norm.forward::<3>(hidden.reshape([rows, width, 1])).reshape([rows, width]),
            None => hidden,
        };
        x + self.dropout.forward(hidden)
    }
}

/// A stage of the model.
pub fn stage(at: &StageContext) -> StageBox {
    noisy(at, true)
}

/// The same without the norm, which cannot be captured.
pub fn drawing(at: &StageContext) -> StageBox {
    noisy(at, false)
}

fn noisy(at: &StageContext, counts: bool) -> StageBox {
    let noisy = init_seeded(at.index as u64, &at.device, |device| Noisy {
        linear: LinearConfig::new(WIDTH, WIDTH).init(device),
        frozen: LinearConfig::new(WIDTH, WIDTH).init(device).no_grad(),
        norm: counts.then(|| BatchNormConfig::new(WIDTH).init(device)),
        dropout: DropoutConfig::new(0.5).init(),
    });
    let index = at.index;
    let names = Names::default().renamed(move |path| format!("{index}.{path}"));
    let loss = |y: Tensor<2>, target: Tensor<2>| (y - target).square().mean();
    if at.is_last() { StageBox::with_loss(noisy, loss).named(names) } else { StageBox::new(noisy).named(names) }
}

/// A pipeline of two ranks and four microbatches, eager and without a seed.
pub fn builder(schedule: &str) -> Builder {
    let size = Size::new(2, 4).with_chunks(if schedule == "ZBVZeroBubble" { 2 } else { 1 });
    let builder = Pipeline::builder().schedule(schedule, size).devices(vec![device()]);
    let builder = builder.stages(stage).optimizer(|| AdamWConfig::new().init());
    builder.accumulation(Accumulation::Ordered).split(SplitBackward::Eager)
}

/// The batch of a step.
pub fn batch(step: usize) -> Batch {
    let noise = |seed| TensorData::new(noise(seed, SAMPLES * WIDTH), [SAMPLES, WIDTH]);
    let tensor = |seed| Tensor::<2>::from_data(noise(seed), &device());
    Batch::new(tensor(2 * step as u64)).target(tensor(2 * step as u64 + 1))
}
