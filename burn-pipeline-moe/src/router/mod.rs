//! Routers: which experts a token goes to, and with what weight.
//!
//! 1. [`Router`] scores the experts for each token and chooses the `k` best.
//! 2. [`TokenDispatch`] gives every choice a row of its expert, or drops it if the expert is full. [`PackedRows`] does
//!    the same, but each expert has as many rows as it needs.

mod dispatch;

pub use crate::ops::{PackedRows, top_k};
pub use dispatch::{Capacity, TokenDispatch};

use crate::ops::{RouteOptions, Routed, route};
use burn::config::Config;
use burn::module::{Module, Param};
use burn::nn::{Initializer, Linear, LinearConfig};
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_pipeline::ops::DeferredForward;

/// How a router turns logits into scores.
#[derive(Config, Debug, Copy, PartialEq, Eq)]
pub enum Scoring {
    /// A softmax: the scores of a token add up to 1.
    Softmax,
    /// A sigmoid of each logit (DeepSeek-V3).
    Sigmoid,
}

/// The configuration of a router.
#[derive(Config, Debug)]
pub struct RouterConfig {
    /// Width of a token.
    pub d_model: usize,
    /// Number of experts to choose from.
    pub experts: usize,
    /// Number of experts that a token goes to.
    #[config(default = 2)]
    pub top_k: usize,
    /// How logits become scores.
    #[config(default = "Scoring::Softmax")]
    pub scoring: Scoring,
    /// Divide the gates of a token by their sum. Ignored with `top_k` 1, because the gate would always be 1 and the
    /// router would get no gradient.
    #[config(default = true)]
    pub normalize: bool,
    /// Add a bias to the scores when choosing, to balance load without a loss (Wang et al., 2024). Gradient descent
    /// does not train it; see [`balance`](crate::balance).
    #[config(default = false)]
    pub expert_bias: bool,
}

impl RouterConfig {
    /// Initializes the router, with small scores.
    ///
    /// # Panics
    /// Panics if `top_k` is 0 or more than the number of experts.
    pub fn init(&self, device: &Device) -> Router {
        let fits = self.top_k > 0 && self.top_k <= self.experts;
        assert!(fits, "a token cannot go to {} of {} experts; choose 1 to {1}", self.top_k, self.experts);
        let scores = LinearConfig::new(self.d_model, self.experts).with_bias(false);
        let scores = scores.with_initializer(Initializer::Normal { mean: 0.0, std: 0.02 }).init(device);
        let zeros = || Param::from_tensor(Tensor::zeros([self.experts], device)).set_require_grad(false);
        Router {
            scores,
            bias: self.expert_bias.then(zeros),
            top_k: self.top_k,
            sigmoid: self.scoring == Scoring::Sigmoid,
            normalize: self.normalize && self.top_k > 1,
        }
    }
}

/// Scores the experts for each token and chooses the best.
#[derive(Module, Debug)]
pub struct Router {
    /// The layer that computes logits, `[d_model, experts]`.
    pub scores: Linear,
    /// A bias added to scores when choosing, `[experts]`.
    pub bias: Option<Param<Tensor<1>>>,
    top_k: usize,
    sigmoid: bool,
    normalize: bool,
}

/// A router's output for `t` tokens, `e` experts and `k` choices per token.
#[derive(Debug, Clone)]
pub struct Routing {
    /// Logits `[t, e]`.
    pub logits: Tensor<2>,
    /// The mean over tokens of scores that add up to 1 per token, `[e]`; used for load balancing.
    pub mean_probabilities: Tensor<1>,
    /// The chosen experts, best first, `[t, k]`.
    pub experts: Tensor<2, Int>,
    /// The weights of their outputs `[t, k]`.
    pub gates: Tensor<2>,
    /// The number of choices for each expert `[e]`.
    pub load: Tensor<1, Int>,
}

impl Router {
    /// Routes tokens `[t, d_model]`. Logits are computed in the type of its own parameters. Scores and gates are
    /// computed from them in f32, and rounded once to that type.
    pub fn forward(&self, tokens: Tensor<2>) -> Routing {
        let logits = self.scores.forward_deferred(tokens.cast(self.scores.weight.dtype()));
        let options = RouteOptions { top_k: self.top_k, sigmoid: self.sigmoid, normalize: self.normalize };
        let bias = self.bias.as_ref().map(|bias| bias.val().detach());
        let Routed { gates, mean_probabilities, experts, load } = route(logits.clone(), bias, options);
        Routing { logits, mean_probabilities, experts, gates, load }
    }

    /// Moves the router's bias by `rate` towards an even load: up for experts with fewer choices than the mean of
    /// `load`, down for those with more. A router without a bias is returned unchanged.
    ///
    /// Wang et al., "Auxiliary-Loss-Free Load Balancing" (2024), algorithm 1; see [`balance`](crate::balance).
    pub fn with_updated_bias(mut self, load: &[f64], rate: f64) -> Self {
        let mean = load.iter().sum::<f64>() / load.len().max(1) as f64;
        let moves: Vec<f32> = load.iter().map(|&got| (rate * direction(mean - got)) as f32).collect();
        self.bias = self.bias.take().map(|bias| {
            bias.map(|value| {
                let (device, dtype) = (value.device(), value.dtype());
                value.detach() + Tensor::<1>::from_data(TensorData::from(moves.as_slice()), (&device, dtype))
            })
        });
        self
    }
}

fn direction(difference: f64) -> f64 {
    if difference == 0.0 { 0.0 } else { difference.signum() }
}
