//! Vocabulary-parallel layers: the embedding, and the cross entropy of scores of which each rank has a piece.
//!
//! The head itself is a [`ColumnLinear`](super::ColumnLinear) from the width to the vocabulary.

use super::as_ordinary::as_ordinary;
use crate::ops::DeferredForward;
use crate::tensor_parallel::{OwnIds, TensorGroup};
use burn::nn::Embedding;
use burn::tensor::{Int, Tensor};

/// A vocabulary-parallel embedding: each rank of a group holds the vectors of its part of the vocabulary. Its
/// parameter has the ordinary layer's name.
#[derive(Clone, Debug)]
pub struct VocabEmbedding {
    /// This rank's vectors `[vocabulary / ranks, d_model]`.
    pub embedding: Embedding,
    group: TensorGroup,
}

as_ordinary!(VocabEmbedding { embedding });

impl VocabEmbedding {
    /// Cuts an ordinary layer.
    ///
    /// # Panics
    /// Panics if the vocabulary cannot be cut evenly over the group, or `group` is one of data-parallel replicas.
    pub fn cut(embedding: Embedding, group: &TensorGroup) -> Self {
        group.expect_members("an embedding");
        Self { embedding: Embedding { weight: group.cut(embedding.weight, 0) }, group: group.clone() }
    }

    /// From token ids `[batch, seq]` to whole vectors `[batch, seq, d_model]`. An id outside the whole vocabulary is
    /// treated as the device treats it in the ordinary layer.
    pub fn forward(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        self.group.reduce_from(self.vectors(tokens))
    }

    /// Like [`VocabEmbedding::forward`], to this rank's piece of the sequence, `[batch, seq / ranks, d_model]`.
    ///
    /// # Panics
    /// Panics if the sequence cannot be cut evenly over the group.
    pub fn forward_cut(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        self.group.reduce_scatter(self.vectors(tokens), 1)
    }

    /// The vectors of the ids in this rank's part, zeros for all others.
    fn vectors(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        let [vocabulary, _] = self.embedding.weight.shape().dims();
        let own = own_ids(&self.group, vocabulary, tokens);
        own.keep(self.embedding.forward_deferred(own.places()))
    }
}

/// The mean cross entropy in nats of targets `[n]`, given this rank's piece `[n, vocabulary / ranks]` of the scores,
/// cut along the vocabulary, as a [`ColumnLinear`](super::ColumnLinear) returns it. The loss is whole on all ranks.
///
/// The whole scores are never materialised: per row, ranks exchange the largest score, the sum of exponentials and
/// the target's score.
pub fn vocab_cross_entropy(scores: Tensor<2>, targets: Tensor<1, Int>, group: &TensorGroup) -> Tensor<1> {
    let [_, vocabulary] = scores.dims();
    // Subtracting any number leaves the loss unchanged, so this one needs no gradient.
    let largest = group.all_gather(scores.clone().detach().max_dim(1), 1).max_dim(1);
    let scores = scores - largest;
    let own = own_ids(group, vocabulary, targets);
    let of_target = own.keep(scores.clone().gather(1, own.places().unsqueeze_dim(1)));
    let sum = group.reduce_from(scores.exp().sum_dim(1));
    (sum.log() - group.reduce_from(of_target)).mean()
}

/// The ids of this rank's words, if each rank has `own` of them.
fn own_ids<const D: usize>(group: &TensorGroup, own: usize, ids: Tensor<D, Int>) -> OwnIds<D> {
    OwnIds::of(group, group.share(own * group.size(), "words of the vocabulary"), ids)
}
