//! Layers of a mixture-of-experts transformer.
//!
//! Every product with weights goes through `burn_pipeline::ops`, so in a split schedule weight gradients wait for `W`.
//! A block returns its output and what its routers leave for the auxiliary losses, [`LayerAuxiliary`].

mod attention;
mod block;
mod context;
mod depths;
mod experts;
mod feed_forward;
mod mixture;
mod multi_token;
mod rotary;

pub use attention::{Attention, AttentionConfig};
pub use block::{Block, BlockConfig, BlockKind, Inner, Mix, PatternError, parse_pattern};
pub use context::AttentionContext;
pub use depths::MixtureOfDepths;
pub use experts::{Experts, ExpertsConfig};
pub use feed_forward::{FeedForward, FeedForwardConfig};
pub use mixture::{MixtureOfExperts, MixtureOfExpertsConfig};
pub use multi_token::{MultiTokenPrediction, predict_ahead};

use burn::nn::Initializer;
use burn::tensor::{Int, Tensor};

/// The usual small normal initial values.
const SMALL: Initializer = Initializer::Normal { mean: 0.0, std: 0.02 };

/// What the routers of one layer leave: auxiliary losses of one element each, and counts.
#[derive(Debug, Clone, Default)]
pub struct LayerAuxiliary {
    /// [`load_balance`](crate::losses::load_balance) of a layer with experts.
    pub load_balance: Option<Tensor<1>>,
    /// [`router_z`](crate::losses::router_z) of a layer with experts.
    pub router_z: Option<Tensor<1>>,
    /// [`depth_router`](crate::losses::depth_router) of a mixture of depths.
    pub depth_router: Option<Tensor<1>>,
    /// Choices that fell on each expert, `[experts]`.
    pub load: Option<Tensor<1, Int>>,
    /// Choices that found their expert full, `[1]`.
    pub dropped: Option<Tensor<1, Int>>,
}
