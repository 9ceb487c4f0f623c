//! The stages of the split benchmark, with layers that defer their weight gradients.

use burn::module::Module;
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::activation::{gelu, relu, softmax};
use burn::tensor::{Bool, Device, Tensor};
use burn_pipeline::ops::DeferredForward;
use burn_pipeline::stage::{Stage, StageBox};

const WIDTH: usize = 256;
const HEADS: usize = 4;

/// Linear layers with ReLU.
#[derive(Module, Debug)]
struct Stack {
    layers: Vec<Linear>,
}

impl Stage for Stack {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
        self.layers.iter().fold(x, |x, layer| relu(layer.forward_deferred(x)))
    }
}

/// Six layers of 1024 by 1024.
pub fn stack() -> StageBox {
    let device = Device::flex().autodiff();
    StageBox::new(Stack { layers: (0..6).map(|_| LinearConfig::new(1024, 1024).init(&device)).collect() })
}

/// The block of `pipeline_examples::gpt`.
#[derive(Module, Debug)]
struct Block {
    norms: [LayerNorm; 2],
    query_key_value: Linear,
    project: Linear,
    up: Linear,
    down: Linear,
}

impl Stage for Block {
    type Input = Tensor<3>;
    type Extra = ();
    type Output = Tensor<3>;

    fn forward(&self, x: Tensor<3>, (): ()) -> Tensor<3> {
        let x = x.clone() + self.attention(self.norms[0].forward(x));
        let wide = gelu(self.up.forward_deferred(self.norms[1].forward(x.clone())));
        x + self.down.forward_deferred(wide)
    }
}

impl Block {
    fn attention(&self, x: Tensor<3>) -> Tensor<3> {
        let [batch, seq, d] = x.dims();
        let split = |part: Tensor<3>| part.reshape([batch, seq, HEADS, d / HEADS]).swap_dims(1, 2);
        let parts = self.query_key_value.forward_deferred(x).chunk(3, 2);
        let [query, key, value] = <[Tensor<3>; 3]>::try_from(parts).expect("three equal chunks of three widths");
        let (query, key, value) = (split(query), split(key), split(value));
        let future = Tensor::<2, Bool>::tril_mask([seq, seq], 0, &query.device());
        let scores = query.matmul(key.swap_dims(2, 3)).div_scalar(((d / HEADS) as f64).sqrt());
        let mixed = softmax(scores.mask_fill(future.unsqueeze::<4>(), -1.0e9), 3).matmul(value);
        self.project.forward_deferred(mixed.swap_dims(1, 2).reshape([batch, seq, d]))
    }
}

/// One transformer block of width 256 with 4 heads.
pub fn block() -> StageBox {
    let device = Device::flex().autodiff();
    let linear = |from, to| LinearConfig::new(from, to).init(&device);
    StageBox::new(Block {
        norms: [0, 1].map(|_| LayerNormConfig::new(WIDTH).init(&device)),
        query_key_value: linear(WIDTH, 3 * WIDTH),
        project: linear(WIDTH, WIDTH),
        up: linear(WIDTH, 4 * WIDTH),
        down: linear(4 * WIDTH, WIDTH),
    })
}
