//! The models of the parity tests, with their data and their plain loss.

use burn::module::Module;
use burn::tensor::{Int, Tensor};
use burn_pipeline::payload::AnyTensor;
use burn_pipeline::stage::{Batch, Stage, StageBox};
use burn_pipeline::train::StageContext;
use pipeline_examples::gpt::{GptConfig, GptPart, Signal, next_token_loss};
use pipeline_tests::device::device;
use pipeline_tests::mlp;
use pipeline_tests::reference::whole;

pub(crate) use pipeline_tests::noise::noise;

/// The sizes of `count` pieces of `samples` samples, as cut by hand: as even as possible, larger ones first.
pub(crate) fn sizes(samples: usize, count: usize) -> Vec<usize> {
    let mut left = samples;
    (0..count)
        .rev()
        .map(|after| {
            let size = left.div_ceil(after + 1);
            left -= size;
            size
        })
        .collect()
}

pub(crate) fn range(sizes: &[usize], piece: usize) -> std::ops::Range<usize> {
    let start: usize = sizes[..piece].iter().sum();
    start..start + sizes[piece]
}

pub(crate) fn read(tensor: &AnyTensor) -> Vec<f32> {
    tensor.to_data().unwrap().iter::<f32>().collect()
}

/// A model for the tests: how to build it, its data, and its loss over a range of samples.
pub(crate) trait Case: 'static {
    type Model: Module;
    fn model(&self) -> Self::Model;
    fn stage(at: &StageContext) -> StageBox;
    fn batch(&self) -> Batch;
    fn loss(&self, model: &Self::Model, samples: std::ops::Range<usize>) -> Tensor<1>;
}

pub(crate) struct Stack {
    x: Tensor<2>,
    ids: Tensor<2, Int>,
    target: Tensor<2>,
}

impl Stack {
    pub(crate) fn new(samples: usize) -> Self {
        let device = device();
        let noise = |seed| Tensor::<1>::from_floats(&*noise(seed, samples * mlp::WIDTH), &device);
        let noise = |seed| noise(seed).reshape([samples, mlp::WIDTH]);
        let ids = Tensor::<1, Int>::arange(0..samples as i64, &device).remainder_scalar(3).reshape([samples, 1]);
        Self { x: noise(1), ids, target: noise(2) }
    }
}

impl Case for Stack {
    type Model = mlp::Mlp;

    fn model(&self) -> mlp::Mlp {
        mlp::part(&whole())
    }

    fn stage(at: &StageContext) -> StageBox {
        mlp::stage(at)
    }

    fn batch(&self) -> Batch {
        Batch::new((self.x.clone(), self.ids.clone())).target(self.target.clone())
    }

    fn loss(&self, model: &mlp::Mlp, samples: std::ops::Range<usize>) -> Tensor<1> {
        let (x, ids) = (self.x.clone().slice([samples.clone()]), self.ids.clone().slice([samples.clone()]));
        let output = model.forward((x.autodiff(), ids.autodiff()), ());
        mlp::loss(output, self.target.clone().slice([samples]).autodiff())
    }
}

/// A transformer.
pub(crate) type Text = SomeText<false>;
/// A transformer all of whose matmuls have at least 16 rows and columns.
pub(crate) type WideText = SomeText<true>;

pub(crate) struct SomeText<const WIDE: bool> {
    tokens: Tensor<2, Int>,
    next: Tensor<2, Int>,
}

pub(crate) fn small_gpt() -> GptConfig {
    GptConfig::new().with_d_model(8).with_layers(8).with_heads(2).with_seq(6).with_vocab(17).with_seed(3)
}

impl<const WIDE: bool> SomeText<WIDE> {
    fn config() -> GptConfig {
        match WIDE {
            false => small_gpt(),
            true => small_gpt().with_d_model(32).with_seq(20).with_vocab(40),
        }
    }

    pub(crate) fn new(samples: usize) -> Self {
        let (device, GptConfig { seq, vocab, .. }) = (device(), Self::config());
        let draw = |seed| {
            let token = |x: &f32| ((x + 1.0) * vocab as f32 / 2.0) as i32;
            let tokens: Vec<i32> = noise(seed, samples * seq).iter().map(token).collect();
            Tensor::<1, Int>::from_ints(&*tokens, &device).reshape([samples, seq])
        };
        Self { tokens: draw(3), next: draw(4) }
    }

    /// The tokens of some samples, and the tokens that follow them.
    pub(crate) fn tokens(&self, samples: std::ops::Range<usize>) -> [Tensor<2, Int>; 2] {
        [self.tokens.clone().slice([samples.clone()]), self.next.clone().slice([samples])]
    }
}

impl<const WIDE: bool> Case for SomeText<WIDE> {
    type Model = GptPart;

    fn model(&self) -> Self::Model {
        Self::config().part(&whole())
    }

    fn stage(at: &StageContext) -> StageBox {
        Self::config().stage(at)
    }

    fn batch(&self) -> Batch {
        Batch::new(Signal::Tokens(self.tokens.clone())).target(self.next.clone())
    }

    fn loss(&self, model: &Self::Model, samples: std::ops::Range<usize>) -> Tensor<1> {
        let tokens = self.tokens.clone().slice([samples.clone()]).autodiff();
        next_token_loss(model.forward(Signal::Tokens(tokens), ()), self.next.clone().slice([samples]).autodiff())
    }
}
