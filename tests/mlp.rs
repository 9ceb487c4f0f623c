//! A stack of layers with a second, integer input that every stage reads and passes on.

use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Int, Tensor};
use burn_pipeline::stage::{Names, Stage, StageBox, init_seeded};
use burn_pipeline::train::StageContext;
use std::ops::Range;

/// Width of the stack.
pub const WIDTH: usize = 6;
/// Layers of the whole stack.
pub const LAYERS: usize = 8;

/// One layer: a linear map plus a row chosen by the integer input.
#[derive(Module, Debug)]
pub struct Layer {
    linear: Linear,
    rows: Embedding,
}

/// A contiguous part of the stack.
#[derive(Module, Debug)]
pub struct Mlp {
    layers: Vec<Layer>,
}

impl Stage for Mlp {
    type Input = (Tensor<2>, Tensor<2, Int>);
    type Extra = ();
    type Output = (Tensor<2>, Tensor<2, Int>);

    fn forward(&self, (x, ids): Self::Input, (): ()) -> Self::Output {
        let apply = |x: Tensor<2>, layer: &Layer| {
            let [batch, _] = ids.dims();
            let row = layer.rows.forward(ids.clone()).reshape([batch, WIDTH]);
            relu(layer.linear.forward(x.clone())) + row + x
        };
        (self.layers.iter().fold(x, apply), ids.clone())
    }
}

/// The part of the stack that a stage holds.
pub fn part(at: &StageContext) -> Mlp {
    layers(at.layers(LAYERS), at)
}

/// The parameter names of a stage's part of the stack.
pub fn names(at: &StageContext) -> Names {
    Names::default().layers_from("layers", at.layers(LAYERS).start)
}

/// The layers `range` of the stack.
fn layers(range: Range<usize>, at: &StageContext) -> Mlp {
    let layer = |index: usize| {
        init_seeded(100 + index as u64, &at.device, |device| Layer {
            linear: LinearConfig::new(WIDTH, WIDTH).init(device),
            rows: EmbeddingConfig::new(3, WIDTH).init(device),
        })
    };
    Mlp { layers: range.map(layer).collect() }
}

/// The mean of squared distances.
pub fn loss((y, _): (Tensor<2>, Tensor<2, Int>), target: Tensor<2>) -> Tensor<1> {
    (y - target).square().mean()
}

/// A pipeline's stage factory.
pub fn stage(at: &StageContext) -> StageBox {
    stage_of(at.layers(LAYERS), at)
}

/// A stage of these layers.
pub fn stage_of(range: Range<usize>, at: &StageContext) -> StageBox {
    let (first, part) = (range.start, layers(range, at));
    let stage = if at.is_last() { StageBox::with_loss(part, loss) } else { StageBox::new(part) };
    stage.named(Names::default().layers_from("layers", first))
}
