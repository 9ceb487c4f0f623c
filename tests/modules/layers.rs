//! Layers that each have one property that a pipeline can get wrong, and a stage of such layers.

use crate::map::Map;
use crate::masks::Masks;
use burn::module::{Module, Param, RunningState};
use burn::nn::{BatchNorm, Dropout, Gru, Linear, Lstm};
use burn::tensor::activation::{relu, tanh};
use burn::tensor::{FloatDType, Tensor};
use burn_pipeline::nn::GroupDropout;
use burn_pipeline::stage::Stage;
use burn_pipeline::tensor_parallel::TensorGroup;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The width of every layer.
pub(crate) const WIDTH: usize = 8;

/// A linear map followed by [`Kind`].
#[derive(Module, Debug)]
pub(crate) struct Layer {
    pub(crate) linear: Map,
    pub(crate) kind: Kind,
}

/// The property.
#[derive(Module, Debug)]
#[expect(clippy::large_enum_variant, reason = "a test holds a handful of them")]
pub(crate) enum Kind {
    /// None: a smooth function of the map.
    Dense(Dense),
    /// Running statistics.
    Norm(BatchNorm),
    /// A counter that the forward updates and never reads.
    Tally(RunningState<Tensor<1>>),
    /// Random numbers.
    Noise(Noise),
    /// A field that changes after every step.
    Annealed(Annealed),
    /// A value that the program changes between steps.
    Heated(Heated),
    /// Control flow on a tensor's values.
    Branch(Branch),
    /// Parameters that are frozen until the first step, and others that are frozen after it.
    Thawing(Thawing),
    /// A parameter without gradient that counts steps.
    Counting(Param<Tensor<1>>),
    /// Recurrent layers.
    Recurrent(Recurrent),
}

/// A constant number.
#[derive(Module, Debug)]
pub(crate) struct Dense {
    pub(crate) scale: f64,
}

/// Compares a mean with a threshold.
#[derive(Module, Debug)]
pub(crate) struct Branch {
    pub(crate) threshold: f64,
}

/// Dropout whose masks can be recorded and used again.
#[derive(Module, Debug)]
pub(crate) struct Noise {
    pub(crate) dropout: Dropout,
    #[module(skip)]
    pub(crate) masks: Masks,
    #[module(skip)]
    pub(crate) group: TensorGroup,
}

impl Noise {
    /// A mask for these ones, which all members of a group draw alike.
    fn draw(&self, ones: Tensor<2>) -> Tensor<2> {
        match self.group.size() {
            1 => self.dropout.forward(ones),
            _ => GroupDropout::cut(self.dropout.clone(), &self.group).forward(ones),
        }
    }
}

/// A plain number.
#[derive(Module, Debug)]
pub(crate) struct Annealed {
    pub(crate) temperature: f64,
}

/// A number that others change.
#[derive(Module, Debug)]
pub(crate) struct Heated {
    #[module(skip)]
    pub(crate) heat: Arc<AtomicU64>,
}

/// A second map, frozen at first.
#[derive(Module, Debug)]
pub(crate) struct Thawing {
    pub(crate) second: Linear,
}

/// Both of Burn's gated recurrent layers.
#[derive(Module, Debug)]
pub(crate) struct Recurrent {
    pub(crate) lstm: Lstm,
    pub(crate) gru: Gru,
}

impl Layer {
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let (y, own) = (self.linear.forward(x.clone()), self.linear.dtype());
        match &self.kind {
            Kind::Dense(dense) => tanh(y * dense.scale),
            Kind::Norm(norm) => {
                let of_norm = FloatDType::from(norm.gamma.val().dtype());
                tanh(norm.forward(y.cast(of_norm)).cast(own))
            }
            Kind::Tally(tally) => {
                tally.update(tally.value_sync() + 1.0);
                tanh(y)
            }
            // Evaluation draws nothing.
            Kind::Noise(_) if !y.device().is_autodiff() => tanh(y),
            Kind::Noise(noise) => {
                // Burn draws masks in f32.
                let ones = y.ones_like().cast(FloatDType::F32);
                tanh(y) * noise.masks.next(|| noise.draw(ones)).cast(own)
            }
            Kind::Annealed(annealed) => tanh(y * annealed.temperature),
            Kind::Heated(heated) => tanh(y * f64::from_bits(heated.heat.load(Ordering::Relaxed))),
            Kind::Branch(branch) if x.cast(own).mean().into_scalar::<f64>() > branch.threshold => tanh(y),
            Kind::Branch(_) => relu(y),
            Kind::Thawing(thawing) => tanh(thawing.second.forward(tanh(y))),
            Kind::Counting(count) => tanh(y * count.val().unsqueeze::<2>()),
            Kind::Recurrent(recurrent) => {
                let [rows, width] = y.dims();
                // Burn's recurrent layers compute in f32 alone.
                let sequence = y.cast(FloatDType::F32).reshape([rows, width / 2, 2]);
                let (sequence, _) = recurrent.lstm.forward(sequence, None);
                recurrent.gru.forward(sequence, None).reshape([rows, width]).cast(own)
            }
        }
    }

    fn after_step(mut self) -> Self {
        self.kind = match self.kind {
            Kind::Annealed(annealed) => Kind::Annealed(Annealed { temperature: annealed.temperature * 0.5 }),
            Kind::Counting(count) => Kind::Counting(count.map(|count| count * 0.5)),
            Kind::Thawing(thawing) => {
                self.linear = self.linear.no_grad();
                Kind::Thawing(Thawing { second: thawing.second.set_require_grad(true) })
            }
            kind => kind,
        };
        self
    }
}

/// Consecutive layers.
#[derive(Module, Debug)]
pub(crate) struct Part {
    pub(crate) layers: Vec<Layer>,
}

impl Stage for Part {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
        self.layers.iter().fold(x, |x, layer| layer.forward(x))
    }

    fn after_step(mut self, _: &[Vec<f64>]) -> Self {
        self.layers = self.layers.into_iter().map(Layer::after_step).collect();
        self
    }
}

/// A layer of an encoder, or of a decoder that reads the encoder's output.
#[derive(Module, Debug)]
pub(crate) enum Translating {
    Encoder(Map),
    Decoder(Decoder),
}

/// A decoder's layer.
#[derive(Module, Debug)]
pub(crate) struct Decoder {
    pub(crate) own: Map,
    pub(crate) cross: Map,
}

/// Consecutive layers of an encoder and a decoder. Two tensors cross every boundary.
#[derive(Module, Debug)]
pub(crate) struct Translator {
    pub(crate) layers: Vec<Translating>,
}

impl Stage for Translator {
    type Input = (Tensor<2>, Tensor<2>);
    type Extra = ();
    type Output = (Tensor<2>, Tensor<2>);

    fn forward(&self, both: Self::Input, (): ()) -> Self::Output {
        self.layers.iter().fold(both, |(memory, x), layer| match layer {
            Translating::Encoder(map) => (tanh(map.forward(memory)), x),
            Translating::Decoder(Decoder { own, cross }) => {
                let read = cross.forward(memory.clone());
                (memory, tanh(own.forward(x) + read))
            }
        })
    }
}
