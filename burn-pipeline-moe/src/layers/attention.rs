//! Causal self-attention within documents.

use super::context::AttentionContext;
use super::initial::SMALL;
use super::rotary::rotated;
use burn::config::Config;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::softmax;
use burn::tensor::{Bool, Device, Int, Tensor};
use burn_pipeline::ops::DeferredForward;

/// The configuration of an attention layer.
#[derive(Config, Debug)]
pub struct AttentionConfig {
    /// Width of the hidden state.
    pub d_model: usize,
    /// Number of heads; divides the width.
    pub heads: usize,
    /// How many tokens back a token attends to, itself included; all if `None`.
    pub window: Option<usize>,
    /// Rotate queries and keys by their positions (rotary embedding); the width of a head must then be even.
    #[config(default = false)]
    pub rotary: bool,
}

impl AttentionConfig {
    /// The layer.
    ///
    /// # Panics
    /// If the heads do not divide the width, or rotary embedding gets heads of an odd width.
    pub fn init(&self, device: &Device) -> Attention {
        let divides = self.heads > 0 && self.d_model.is_multiple_of(self.heads);
        assert!(divides, "{} heads do not divide a width of {}", self.heads, self.d_model);
        let width = self.d_model / self.heads;
        assert!(!self.rotary || width.is_multiple_of(2), "heads of the odd width {width} cannot be rotated in pairs");
        let linear = |to| LinearConfig::new(self.d_model, to).with_initializer(SMALL).init(device);
        let (heads, window, rotary) = (self.heads, self.window, self.rotary);
        Attention { query_key_value: linear(3 * self.d_model), project: linear(self.d_model), heads, window, rotary }
    }
}

/// Causal self-attention: a token attends to itself and to earlier tokens of its own document, within the window.
#[derive(Module, Debug)]
pub struct Attention {
    query_key_value: Linear,
    project: Linear,
    heads: usize,
    window: Option<usize>,
    rotary: bool,
}

impl Attention {
    /// Runs the layer on `[batch, seq, d_model]`.
    pub fn forward(&self, x: Tensor<3>, context: &AttentionContext) -> Tensor<3> {
        let [batch, seq, d] = x.dims();
        let (width, heads) = (d / self.heads, self.heads);
        let hidden = self.hidden(context.documents.clone());
        let joint = self.query_key_value.forward_deferred(x);
        let part = |i: usize| joint.clone().narrow(2, i * d, d).reshape([batch, seq, heads, width]).swap_dims(1, 2);
        let (mut query, mut key, value) = (part(0), part(1), part(2));
        if self.rotary {
            query = rotated(query, &context.positions);
            key = rotated(key, &context.positions);
        }
        let mut scores = query.matmul(key.swap_dims(2, 3)).div_scalar((width as f64).sqrt());
        if let Some(bias) = &context.bias {
            scores = scores + bias.clone();
        }
        let scores = scores.mask_fill(hidden.unsqueeze_dim::<4>(1).expand([batch, heads, seq, seq]), -1.0e9);
        let mixed = softmax(scores, 3).matmul(value);
        self.project.forward_deferred(mixed.swap_dims(1, 2).reshape([batch, seq, d]))
    }

    /// True where a token does not attend to another one, `[batch, seq, seq]`.
    fn hidden(&self, documents: Tensor<2, Int>) -> Tensor<3, Bool> {
        let ([batch, seq], device) = (documents.dims(), documents.device());
        let square = [batch, seq, seq];
        let of = documents.clone().unsqueeze_dim::<3>(2).expand(square);
        let other = of.not_equal(documents.unsqueeze_dim::<3>(1).expand(square));
        let future = Tensor::<2, Bool>::tril_mask([seq, seq], 0, &device);
        let hidden = match self.window {
            Some(window) if window < seq => {
                // Tokens before the window: below the diagonal at this distance.
                let past = Tensor::<2, Bool>::triu_mask([seq, seq], 1 - window as i64, &device);
                future.bool_or(past)
            }
            _ => future,
        };
        other.bool_or(hidden.unsqueeze::<3>().expand(square))
    }
}
