//! A vocabulary that is spread over all pipeline ranks: each rank has a piece of the embedding and of the head.
//!
//! Guarantees: loss and gradients are those of the ordinary layers up to the rounding of sums that are added in parts; sums over
//! ranks are added in the order of ranks, so their bits do not depend on which message came first; a piece is kept, stepped,
//! clipped, saved and loaded as the parameter of a stage that all ranks hold together.
//!
//! The plan says when a rank runs its pieces, and what it exchanges (`burn_pipeline_plan`'s pass `vocabulary`). Here is what they
//! compute, for a microbatch of `n` tokens with the hidden states `x [n, d]` and rank `r`'s piece `W_r [d, V / ranks]`:
//!
//! 1. `S` ([`head`]): the scores `x W_r`, per row their maximum `m_r`, the sum `s_r` of the exponentials, and the target's score. So
//!    that one barrier is enough, also this rank's part of the gradient of `x`: `softmax_r W_r^T`, with the softmax over the
//!    piece alone, and the columns of the rank's own targets.
//! 2. `REDUCE_S`: every rank gets all `m_r`, `s_r` and target scores. They give the loss, and each rank's share of the whole
//!    softmax, by which its part of the gradient counts.
//! 3. `T`: the gradient of `W_r`, from what `S` kept and the rank's share.
//! 4. `IF` and `IB` ([`embedding`]): the vectors of the rank's own ids, zeros for all others; and their gradient.
//!
//! They are operations without autodiff, so what they hold is known. [`layers`] is what a user says of them, and makes the
//! pieces; [`group`] tells which ranks hold them, and under which numbers: those after the last stage's.
//!
//! Follows Algorithm 2 of Yeung et al., Balancing Pipeline Parallelism with Vocabulary Parallelism, 2024 (arXiv:2411.05288).

mod embedding;
mod group;
mod head;
mod layers;
mod own;
mod piece;

pub(crate) use embedding::{look_up, weight_gradient};
pub(crate) use group::{StageGroups, VocabularyGroup};
pub(crate) use head::{InputParts, Kept, input_gradient, join, score};
pub use layers::Vocabulary;
pub(crate) use layers::is_ids;
pub(crate) use own::OwnIds;
pub(crate) use piece::Piece;
