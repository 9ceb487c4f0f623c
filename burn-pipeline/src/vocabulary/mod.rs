//! Vocabulary parallelism: each pipeline rank has a shard of the embedding and of the head.
//!
//! Guarantees: loss and gradients are those of the ordinary layers up to the rounding of sums that are added in
//! parts; sums over ranks are added in rank order, so their bits do not depend on the order of arrival; a shard is
//! stored, stepped, clipped, saved and loaded like a parameter of a stage whose tensor-parallel group is all
//! pipeline ranks.
//!
//! The plan says when a rank runs its shards, and what it exchanges (pass `vocabulary` of `burn_pipeline_plan`).
//! This module computes, for a microbatch of `n` tokens with the hidden states `x [n, d]` and rank `r`'s shard
//! `W_r [d, V / ranks]`:
//!
//! 1. `S` ([`head`]): the scores `x W_r`, and per row their maximum `m_r`, the sum `s_r` of the exponentials, and
//!    the target's score. To need only one barrier, also this rank's part of the gradient of `x`:
//!    `softmax_r W_r^T`, with the softmax over the shard alone, and the columns of the rank's own targets.
//! 2. `REDUCE_S`: every rank gets all `m_r`, `s_r` and target scores. From these follow the loss, and each rank's
//!    share of the whole softmax, which scales its part of the gradient.
//! 3. `T`: the gradient of `W_r`, from what `S` stored and the rank's share.
//! 4. `IF` and `IB` ([`embedding`]): the vectors of the rank's own ids, with zeros for all others; and their
//!    gradient.
//!
//! With a shard in half precision ([`Builder::precision`](crate::Builder::precision)), matmuls and vectors are half;
//! the numbers of `REDUCE_S`, the loss, and sums over ranks are f32.
//!
//! These operations run without autodiff, so the tensors that they store are known. [`layers`] has the user's
//! layers, and makes the shards; [`group`] says which ranks hold them, and under which stage numbers: those after
//! the last stage's.
//!
//! Follows Algorithm 2 of Yeung et al., Balancing Pipeline Parallelism with Vocabulary Parallelism, 2024
//! (arXiv:2411.05288).

mod embedding;
mod group;
mod head;
mod layers;

pub(crate) use embedding::{look_up, weight_gradient};
pub(crate) use group::{Piece, StageGroups, VocabularyGroup};
pub(crate) use head::{InputParts, SavedScores, input_gradient, join, score};
pub use layers::Vocabulary;
pub(crate) use layers::ids_of;
