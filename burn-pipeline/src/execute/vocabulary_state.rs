//! What a row holds for this rank's shards of the vocabulary.

use crate::payload::{AnyTensor, Payload};
use crate::vocabulary::SavedScores;
use burn::tensor::{DType, Shape, Tensor};
use burn_pipeline_plan::plan::MicrobatchTask;
use std::collections::{HashMap, HashSet};

/// What a row holds for this rank's shards of the vocabulary, by microbatch.
#[derive(Debug, Default)]
pub(super) struct VocabularyState {
    /// This rank's messages to collectives that it has not started.
    pub(super) given: HashMap<MicrobatchTask, Payload>,
    /// From `S` to `T`.
    pub(super) kept: HashMap<usize, SavedScores>,
    /// Shape and type of the last stage's output, from `S` on its rank to its backward.
    pub(super) outputs: HashMap<usize, (Shape, DType)>,
    /// Microbatches whose `REDUCE_S` was joined.
    pub(super) joined: HashSet<usize>,
    /// This rank's share of the softmax, for `T`.
    pub(super) shares: HashMap<usize, Tensor<2>>,
    /// The gradient of the last stage's output, on its rank.
    pub(super) gradients: HashMap<usize, AnyTensor>,
}

impl VocabularyState {
    /// Stores this rank's message to a collective until it starts.
    pub(super) fn give(&mut self, collective: MicrobatchTask, payload: Payload) {
        self.given.insert(collective, payload);
    }

    /// Bytes held from `S` to `T`.
    pub(super) fn bytes(&self) -> usize {
        self.kept.values().map(SavedScores::bytes).sum()
    }
}
