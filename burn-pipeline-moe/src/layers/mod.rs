//! Layers of a mixture-of-experts transformer.
//!
//! Every matmul with weights goes through `burn_pipeline::ops`, so in a split schedule weight gradients wait for `W`. A
//! block returns its output, and its routers' auxiliary losses and counts as [`LayerAuxiliary`].
//!
//! Norms and routers run in the type of their own parameters, so
//! [`Precision::keep`](burn_pipeline::stage::Precision::keep) can leave them in f32. All else follows the type of the
//! hidden states, in which a block returns them.

mod attention;
mod block;
mod context;
mod depths;
mod expert_parallel;
mod experts;
mod feed_forward;
mod initial;
mod layer_auxiliary;
mod mixture;
mod multi_token;
mod rotary;
mod structure;
mod transformer;

pub use attention::{Attention, AttentionConfig};
pub use block::{Block, BlockConfig, BlockKind, PatternError, parse_pattern};
pub use context::AttentionContext;
pub use depths::MixtureOfDepths;
pub use experts::{Experts, ExpertsConfig};
pub use feed_forward::{FeedForward, FeedForwardConfig};
pub use layer_auxiliary::LayerAuxiliary;
pub use mixture::{MixtureOfExperts, MixtureOfExpertsConfig};
pub use multi_token::{MultiTokenPrediction, predict_ahead};
pub use structure::{StructureEmbedding, StructureEmbeddingConfig, StructureIds};
pub use transformer::{FeedForwardOrExperts, TransformerBlock};
