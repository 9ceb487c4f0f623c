//! A small language model whose input and output embedding are tied, and a bias that every stage reads.

use crate::cases::noise;
use burn::module::{Module, Param};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::tanh;
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_pipeline::boundary;
use burn_pipeline::stage::{Batch, Stage, StageBox, init_seeded};
use burn_pipeline::train::{SharedParameter, StageContext};

/// The sizes of the model and its data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) vocab: usize,
    pub(crate) width: usize,
    pub(crate) length: usize,
    pub(crate) layers: usize,
}

pub(crate) const SMALL: Size = Size { vocab: 11, width: 6, length: 5, layers: 8 };

/// The values that cross between stages.
#[derive(Clone, Debug)]
pub(crate) enum Signal {
    Tokens(Tensor<2, Int>),
    Hidden(Tensor<3>),
    Scores(Tensor<3>),
}
boundary!(
    enum Signal {
        Tokens(t),
        Hidden(h),
        Scores(s),
    }
);

/// A part of the model: one table on the first stage, another on the last, a bias on all.
#[derive(Module, Debug)]
pub(crate) struct Tied {
    pub(crate) token: Option<Param<Tensor<2>>>,
    pub(crate) blocks: Vec<Linear>,
    pub(crate) bias: Param<Tensor<1>>,
    pub(crate) scores: Option<Param<Tensor<2>>>,
    #[module(skip)]
    is_last: bool,
}

/// A parameter with random values.
pub(crate) fn table(seed: u64, rows: usize, columns: usize, device: &Device) -> Param<Tensor<2>> {
    let values = TensorData::new(noise(seed, rows * columns), [rows, columns]);
    Param::from_tensor(Tensor::from_data(values, device))
}

pub(crate) fn vector(seed: u64, width: usize, device: &Device) -> Param<Tensor<1>> {
    Param::from_tensor(Tensor::from_data(TensorData::new(noise(seed, width), [width]), device))
}

/// The part that a stage holds. Copies have different values on every stage: tying must make them equal.
pub(crate) fn part(size: Size, at: &StageContext) -> Tied {
    let device = &at.device;
    let block = |layer: usize| {
        let make = |device: &Device| LinearConfig::new(size.width, size.width).init(device);
        init_seeded(900 + layer as u64, device, make)
    };
    Tied {
        token: at.is_first().then(|| table(1, size.vocab, size.width, device)),
        blocks: at.layers(size.layers).map(block).collect(),
        bias: vector(50 + at.index as u64, size.width, device),
        // A model that is one stage uses its one table in both places.
        scores: (at.is_last() && !at.is_first()).then(|| table(77, size.vocab, size.width, device)),
        is_last: at.is_last(),
    }
}

impl Stage for Tied {
    type Input = Signal;
    type Extra = ();
    type Output = Signal;

    fn forward(&self, input: Signal, (): ()) -> Signal {
        let hidden = match (input, &self.token) {
            (Signal::Tokens(ids), Some(token)) => {
                let [samples, length] = ids.dims();
                let rows = token.val().select(0, ids.reshape([samples * length]));
                let width = rows.dims()[1];
                rows.reshape([samples, length, width])
            }
            (Signal::Hidden(hidden), None) => hidden,
            (other, _) => panic!("tokens enter at the first stage, hidden states elsewhere; got {other:?}"),
        };
        let bias = self.bias.val().unsqueeze::<3>();
        let hidden = self.blocks.iter().fold(hidden, |x, block| x.clone() + tanh(block.forward(x) + bias.clone()));
        if !self.is_last {
            return Signal::Hidden(hidden);
        }
        let table = self.scores.as_ref().or(self.token.as_ref()).expect("the last stage holds a table");
        Signal::Scores(hidden.matmul(table.val().transpose().unsqueeze::<3>()))
    }
}

pub(crate) fn loss(scores: Signal, target: Tensor<2, Int>) -> Tensor<1> {
    let Signal::Scores(scores) = scores else { panic!("the last stage puts out scores") };
    let [samples, length, vocab] = scores.dims();
    let loss = CrossEntropyLossConfig::new().init(&scores.device());
    loss.forward(scores.reshape([samples * length, vocab]), target.reshape([samples * length]))
}

pub(crate) fn stage(size: Size) -> impl Fn(&StageContext) -> StageBox + Send + Sync + 'static {
    move |at| match at.is_last() {
        true => StageBox::with_loss(part(size, at), loss),
        false => StageBox::new(part(size, at)),
    }
}

/// Ties the tables, and the biases.
pub(crate) fn declared() -> [SharedParameter; 2] {
    let tables = SharedParameter::new("table").at("token").at("scores");
    [tables, SharedParameter::new("bias").at("bias")]
}

/// Tokens, and the tokens that follow them.
#[derive(Clone, Debug)]
pub(crate) struct Text {
    pub(crate) ids: Tensor<2, Int>,
    pub(crate) next: Tensor<2, Int>,
}

impl Text {
    pub(crate) fn new(size: Size, samples: usize, seed: u64) -> Self {
        let draw = |seed| {
            let ids = noise(seed, samples * size.length).into_iter();
            let ids: Vec<i32> = ids.map(|x| ((x + 1.0) / 2.0 * size.vocab as f32) as i32).collect();
            Tensor::<1, Int>::from_ints(&*ids, &Device::flex()).reshape([samples, size.length])
        };
        Self { ids: draw(seed), next: draw(seed + 1) }
    }

    pub(crate) fn batch(&self) -> Batch {
        Batch::new(Signal::Tokens(self.ids.clone())).target(self.next.clone())
    }

    /// The plain loss of some samples.
    pub(crate) fn loss(&self, model: &Tied, samples: std::ops::Range<usize>) -> Tensor<1> {
        let ids = self.ids.clone().slice([samples.clone()]).autodiff();
        let scores = model.forward(Signal::Tokens(ids), ());
        loss(scores, self.next.clone().slice([samples]).autodiff())
    }
}
