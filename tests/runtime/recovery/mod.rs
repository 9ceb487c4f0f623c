//! A call that fails before any weight changed leaves the pipeline as it was: what follows equals, bit for bit, the
//! plain loop that never got the batch.

mod processes;
mod rows;
mod slow;
mod unsent;
mod weights;

use crate::cases::read;
use crate::watchdog::quiet_ranks;
use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Int, Tensor};
use burn_pipeline::stage::{Names, Stage, StageBox, init_seeded};
use burn_pipeline::train::{Builder, Pipeline, PipelineError, StageContext};
use burn_pipeline::{Accumulation, Batch, Size};
use pipeline_tests::noise::noise;

pub(crate) const WIDTH: usize = 4;
pub(crate) const RATE: f64 = 1e-2;
const ROWS: usize = 3;

/// What a stage's layers have beside a linear map and a table.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Extras {
    pub(crate) norm: bool,
    pub(crate) dropout: bool,
}

/// A layer that looks up its ids in a table. With `guards`, it first clamps ids to the table's range.
#[derive(Module, Debug)]
pub(crate) struct Layer {
    linear: Linear,
    table: Embedding,
    norm: Option<BatchNorm>,
    dropout: Dropout,
    #[module(skip)]
    guards: bool,
}

impl Layer {
    pub(crate) fn new(index: usize, device: &Device, extras: Extras, guards: bool) -> Self {
        init_seeded(7 + index as u64, device, |device| Self {
            linear: LinearConfig::new(WIDTH, WIDTH).init(device),
            table: EmbeddingConfig::new(ROWS, WIDTH).init(device),
            norm: extras.norm.then(|| BatchNormConfig::new(WIDTH).init(device)),
            dropout: DropoutConfig::new(if extras.dropout { 0.3 } else { 0.0 }).init(),
            guards,
        })
    }
}

impl Stage for Layer {
    type Input = (Tensor<2>, Tensor<2, Int>);
    type Extra = ();
    type Output = (Tensor<2>, Tensor<2, Int>);

    fn forward(&self, (x, ids): Self::Input, (): ()) -> Self::Output {
        let [samples, _] = ids.dims();
        let looked_up = if self.guards { ids.clone().clamp(0, ROWS as i64 - 1) } else { ids.clone() };
        let y = self.linear.forward(x.clone()) + self.table.forward(looked_up).reshape([samples, WIDTH]);
        let y = self.norm.as_ref().map_or_else(|| y.clone(), |norm| norm.forward(y.clone()));
        (self.dropout.forward(y.tanh()) + x, ids)
    }
}

pub(crate) fn loss((y, _): (Tensor<2>, Tensor<2, Int>), target: Tensor<2>) -> Tensor<1> {
    (y - target).square().mean()
}

/// A stage factory in which the stage at `open` does not guard.
pub(crate) fn stages(open: usize, extras: Extras) -> impl Fn(&StageContext) -> StageBox + Send + Sync + 'static {
    move |at| {
        let layer = Layer::new(at.index, &at.device, extras, at.index != open);
        let stage = if at.is_last() { StageBox::with_loss(layer, loss) } else { StageBox::new(layer) };
        let index = at.index;
        stage.named(Names::default().renamed(move |name| format!("layers.{index}.{name}")))
    }
}

/// The data of batch `number`, four samples per microbatch; microbatch `bad` has an id without a row in the table.
pub(crate) fn data(number: u64, microbatches: usize, bad: Option<usize>) -> (Tensor<2>, Tensor<2, Int>, Tensor<2>) {
    let (device, samples) = (Device::flex(), 4 * microbatches);
    let numbers = |seed| Tensor::<1>::from_floats(&*noise(seed, samples * WIDTH), &device).reshape([samples, WIDTH]);
    let id = |sample: usize| if bad == Some(sample / 4) && sample % 4 == 2 { 90 } else { (sample % ROWS) as i64 };
    let ids: Vec<i64> = (0..samples).map(id).collect();
    let ids = Tensor::<1, Int>::from_ints(&*ids, &device).reshape([samples, 1]);
    (numbers(2 * number + 1), ids, numbers(2 * number + 2))
}

pub(crate) fn batch(number: u64, microbatches: usize, bad: Option<usize>) -> Batch {
    let (x, ids, target) = data(number, microbatches, bad);
    Batch::new((x, ids)).target(target)
}

pub(crate) fn builder((schedule, chunks): (&str, usize), ranks: usize, microbatches: usize) -> Builder {
    quiet_ranks();
    Pipeline::builder()
        .schedule(schedule, Size { ranks, chunks, microbatches })
        .devices(vec![Device::flex()])
        .optimizer(|| AdamWConfig::new().init())
        .accumulation(Accumulation::Ordered)
        .seed(5)
}

pub(crate) fn weights(pipeline: &mut Pipeline) -> Vec<Vec<f32>> {
    pipeline.weights().unwrap().iter().flatten().map(read).collect()
}

/// Asserts that a call failed and changed nothing.
pub(crate) fn assert_undone<T: std::fmt::Debug>(result: Result<T, PipelineError>, drops: bool, says: &str) {
    match result.unwrap_err() {
        PipelineError::Undone { source, dropped } => {
            assert_eq!(dropped, drops, "{source}");
            assert!(source.to_string().contains(says), "{source} does not contain {says}");
        }
        other => panic!("expected an undone call: {other}"),
    }
}
