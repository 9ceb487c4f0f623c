//! Mixture of depths: some tokens of a sequence go through a block, the others bypass it.
//!
//! Raposo et al., "Mixture-of-Depths" (2024): a router scores tokens, the best of each sequence take the block, and the
//! block's change is weighted by the router's score, so the router gets a gradient. The choice compares a token with
//! later ones, so it is not causal. The router loss also trains the score to predict the choice from one token alone.
//!
//! 1. A token is chosen if fewer tokens than the capacity have a better score. Of equal scores the earlier is better.
//! 2. The chosen tokens form a shorter sequence for the block, in their order.
//! 3. The block's change of these tokens, times the sigmoid of their score, is added to them.
//!
//! The router computes in the type of its own parameters.

use super::context::AttentionContext;
use super::initial::SMALL;
use super::layer_auxiliary::LayerAuxiliary;
use super::transformer::TransformerBlock;
use crate::losses::depth_router;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::sigmoid;
use burn::tensor::{Bool, Device, IndexingUpdateOp, Int, Tensor};
use burn_pipeline::ops::DeferredForward;

/// A block that only some tokens take.
#[derive(Module, Debug)]
pub struct MixtureOfDepths {
    router: Linear,
    pub(super) inner: TransformerBlock,
    capacity: f64,
}

/// The tokens that take the block.
struct Chosen {
    /// `[batch, seq]`.
    mask: Tensor<2, Bool>,
    /// Their positions, ascending, `[batch, count]`.
    places: Tensor<2, Int>,
}

impl MixtureOfDepths {
    /// A block of width `d_model` that the fraction `capacity` of each sequence takes (at least one token).
    pub fn new(inner: TransformerBlock, d_model: usize, capacity: f64, device: &Device) -> Self {
        let router = LinearConfig::new(d_model, 1).with_bias(false).with_initializer(SMALL).init(device);
        Self { router, inner, capacity }
    }

    /// Changes the block that the tokens take.
    pub(super) fn map(self, change: impl FnOnce(TransformerBlock) -> TransformerBlock) -> Self {
        Self { inner: change(self.inner), ..self }
    }

    /// Runs the block on `[batch, seq, d_model]`.
    pub fn forward(&self, x: Tensor<3>, context: &AttentionContext) -> (Tensor<3>, LayerAuxiliary) {
        let [batch, seq, d] = x.dims();
        let count = depth_tokens(self.capacity, seq);
        let logits = self.router.forward_deferred(x.clone().cast(self.router.weight.dtype())).reshape([batch, seq]);
        let Chosen { mask, places } = choose(logits.clone().detach(), count);
        let rows = places.clone().unsqueeze_dim::<3>(2).expand([batch, count, d]);
        let short = x.clone().gather(1, rows.clone());
        let (through, mut auxiliary) = self.inner.forward(short.clone(), &context.of(places.clone()));
        let gate = sigmoid(logits.clone().gather(1, places)).reshape([batch, count, 1]).cast(x.dtype());
        let y = x.scatter(1, rows, (through - short) * gate, IndexingUpdateOp::Add);
        auxiliary.depth_router = Some(depth_router(logits, mask));
        (y, auxiliary)
    }
}

/// The number of tokens of a sequence that take the block.
pub(super) fn depth_tokens(capacity: f64, seq: usize) -> usize {
    assert!(seq > 0, "a mixture of depths needs at least one token");
    ((capacity * seq as f64).ceil() as usize).clamp(1, seq)
}

/// The `count` best tokens of each row, without a sort, so a captured stage can replay it and nothing is read back.
/// NaN comes last: it is neither larger than another number nor equal to it, and more tokens than `count` would be
/// chosen.
fn choose(scores: Tensor<2>, count: usize) -> Chosen {
    // Not `not_equal`, which is false for NaN in SPIR-V.
    let is_number = scores.clone().equal(scores.clone());
    let scores = scores.mask_fill(is_number.bool_not(), f64::NEG_INFINITY);
    let ([batch, seq], device) = (scores.dims(), scores.device());
    let cube = [batch, seq, seq];
    let mine = scores.clone().unsqueeze_dim::<3>(2).expand(cube);
    let theirs = scores.unsqueeze_dim::<3>(1).expand(cube);
    // True where the other token comes before this one.
    let earlier = Tensor::<2, Bool>::triu_mask([seq, seq], 0, &device).unsqueeze::<3>().expand(cube);
    let better = theirs.clone().greater(mine.clone()).bool_or(theirs.equal(mine).bool_and(earlier));
    let rank = better.int().sum_dim(2).reshape([batch, seq]);
    let mask = rank.lower_scalar(count as i64);
    let nth = mask.clone().int().cumsum(1).sub_scalar(1).mask_fill(mask.clone().bool_not(), count as i64);
    let all = Tensor::<1, Int>::arange(0..seq as i64, &device).unsqueeze::<2>().expand([batch, seq]);
    // Tokens that are not chosen all write to one extra position, which is cut off.
    let places = Tensor::<2, Int>::zeros([batch, count + 1], &device).scatter(1, nth, all, IndexingUpdateOp::Add);
    Chosen { mask, places: places.narrow(1, 0, count) }
}
