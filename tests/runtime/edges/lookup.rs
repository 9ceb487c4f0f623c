//! A model whose first layers have no parameters and pass integers on, so that early stages neither receive nor
//! send gradients.

use crate::cases::{Case, noise};
use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::tensor::activation::tanh;
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_pipeline::boundary;
use burn_pipeline::stage::{Batch, Stage, StageBox, init_seeded};
use burn_pipeline::train::StageContext;
use pipeline_tests::reference::whole;

const ROWS: i64 = 7;
const WIDTH: usize = 3;

#[derive(Debug)]
pub(super) enum Signal {
    Ids(Tensor<2, Int>),
    Hidden(Tensor<3>),
}
boundary!(
    enum Signal {
        Ids(i),
        Hidden(h),
    }
);

#[derive(Module, Debug)]
enum Layer {
    /// Adds to integers; no parameter.
    Shift(usize),
    Embed(Embedding),
    Linear(Linear),
}

impl Layer {
    fn new(index: usize, device: &Device) -> Self {
        init_seeded(500 + index as u64, device, |device| match index {
            0..3 => Layer::Shift(index),
            3 => Layer::Embed(EmbeddingConfig::new(ROWS as usize, WIDTH).init(device)),
            _ => Layer::Linear(LinearConfig::new(WIDTH, WIDTH).init(device)),
        })
    }

    fn forward(&self, signal: Signal) -> Signal {
        match (self, signal) {
            (Layer::Shift(by), Signal::Ids(ids)) => Signal::Ids(ids.add_scalar(*by as i64 + 1).remainder_scalar(ROWS)),
            (Layer::Embed(table), Signal::Ids(ids)) => Signal::Hidden(table.forward(ids)),
            (Layer::Linear(linear), Signal::Hidden(x)) => Signal::Hidden(tanh(linear.forward(x))),
            (layer, signal) => panic!("{layer} does not take {signal:?}"),
        }
    }
}

#[derive(Module, Debug)]
pub(super) struct Part {
    layers: Vec<Layer>,
}

impl Part {
    fn new(at: &StageContext) -> Self {
        Self { layers: at.layers(8).map(|index| Layer::new(index, &at.device)).collect() }
    }
}

impl Stage for Part {
    type Input = Signal;
    type Extra = ();
    type Output = Signal;

    fn forward(&self, input: Signal, (): ()) -> Signal {
        self.layers.iter().fold(input, |signal, layer| layer.forward(signal))
    }
}

fn loss(output: Signal, target: Tensor<3>) -> Tensor<1> {
    let Signal::Hidden(y) = output else { panic!("hidden states come out") };
    (y - target).square().mean()
}

pub(super) struct Lookup {
    ids: Tensor<2, Int>,
    target: Tensor<3>,
}

impl Lookup {
    pub(super) fn new(samples: usize) -> Self {
        let device = Device::flex();
        let ids = Tensor::<1, Int>::arange(0..2 * samples as i64, &device).remainder_scalar(5);
        let target = TensorData::new(noise(9, samples * 2 * WIDTH), [samples, 2, WIDTH]);
        Self { ids: ids.reshape([samples, 2]), target: Tensor::from_data(target, &device) }
    }
}

impl Case for Lookup {
    type Model = Part;

    fn model(&self) -> Part {
        Part::new(&whole())
    }

    fn stage(at: &StageContext) -> StageBox {
        match at.is_last() {
            true => StageBox::with_loss(Part::new(at), loss),
            false => StageBox::new(Part::new(at)),
        }
    }

    fn batch(&self) -> Batch {
        Batch::new(Signal::Ids(self.ids.clone())).target(self.target.clone())
    }

    fn loss(&self, model: &Part, samples: std::ops::Range<usize>) -> Tensor<1> {
        let ids = self.ids.clone().slice([samples.clone()]).autodiff();
        loss(model.forward(Signal::Ids(ids), ()), self.target.clone().slice([samples]).autodiff())
    }
}
