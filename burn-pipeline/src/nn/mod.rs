//! Tensor-parallel layers: Burn's `nn` layers, cut over the members of a group.
//!
//! Guarantees: a layer, and the gradients of its input and its weights, equal those of the ordinary layer that it was
//! cut from, up to the rounding of sums that are added in parts. For one group size they have the same bits under
//! every schedule with `Ordered`. No rank keeps more than its piece of a cut weight.
//!
//! 1. A layer is *cut* from the ordinary one, as its configuration initialises it:
//!    `ColumnLinear::cut(LinearConfig::new(d, 4 * d).init(&at.device), &at.group)`. The values are those of the
//!    group's first member; the other members' own values are not used.
//! 2. Its input is whole on all members. A column-parallel layer gives each member its piece of the output; a
//!    row-parallel layer takes pieces and gives the whole sum. [`SelfAttention`] and [`GatedFeedForward`] each
//!    combine one of both, so that a layer costs one all-reduce forward and one backward.
//! 3. Whatever is not cut (norms, biases of row-parallel layers, positions) is used as it is: all members compute the
//!    same.
//! 4. With `forward_cut`, input and output are this member's piece along the sequence: a column-parallel layer gathers,
//!    a row-parallel one gives each member its piece of the sum. Norms and sums between layers then run on pieces, and
//!    their weights go through [`TensorGroup::for_pieces`](crate::tensor_parallel::TensorGroup::for_pieces).
//! 5. Dropout draws the whole mask on every member, which keeps its piece ([`GroupDropout`]). Burn's own is refused in
//!    a tensor-parallel stage.
//! 6. Parameters have the ordinary layers' names.
//!
//! Follows Megatron-LM (arXiv:1909.08053) and, for pieces of the sequence, Korthikanti et al. (arXiv:2205.05198). The
//! cross entropy over the vocabulary is Megatron's `vocab_parallel_cross_entropy`.
//!
//! ```
//! use burn::module::Module;
//! use burn::nn::{LayerNorm, LayerNormConfig, LinearConfig};
//! use burn::tensor::{Tensor, activation::gelu};
//! use burn_pipeline::StageContext;
//! use burn_pipeline::nn::{ColumnLinear, RowLinear};
//! use burn_pipeline::tensor_parallel::TensorGroup;
//!
//! #[derive(Module, Debug)]
//! struct FeedForward {
//!     norm: LayerNorm,
//!     up: ColumnLinear,
//!     down: RowLinear,
//! }
//!
//! impl FeedForward {
//!     fn new(at: &StageContext, d: usize) -> Self {
//!         Self {
//!             norm: LayerNormConfig::new(d).init(&at.device),
//!             up: ColumnLinear::cut(LinearConfig::new(d, 4 * d).init(&at.device), &at.group),
//!             down: RowLinear::cut(LinearConfig::new(4 * d, d).init(&at.device), &at.group),
//!         }
//!     }
//!
//!     fn forward(&self, x: Tensor<3>) -> Tensor<3> {
//!         let wide = gelu(self.up.forward(self.norm.forward(x.clone())));
//!         x + self.down.forward(wide)
//!     }
//!
//!     /// The same for this rank's piece of the sequence, axis 1.
//!     fn forward_cut(&self, piece: Tensor<3>, group: &TensorGroup) -> Tensor<3> {
//!         let normal = group.for_pieces(&self.norm).forward(piece.clone());
//!         piece + self.down.forward_cut(gelu(self.up.forward_cut(normal, 1)), 1)
//!     }
//! }
//! ```

mod as_ordinary;
mod attention;
mod dropout;
mod feed_forward;
mod linear;
mod vocabulary;

pub use attention::SelfAttention;
pub use dropout::GroupDropout;
pub use feed_forward::GatedFeedForward;
pub use linear::{ColumnLinear, RowLinear};
pub use vocabulary::{VocabEmbedding, vocab_cross_entropy};
