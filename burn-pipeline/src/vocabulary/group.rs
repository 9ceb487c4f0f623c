//! The layers that are cut over the vocabulary, and a rank's groups: its tensor-parallel group, its replicas, and the
//! ranks that hold the shards of the vocabulary.
//!
//! On all ranks, the shards of the embedding are stage `stages`, and those of the head are stage `stages + 1`. So
//! everything that iterates over a rank's stages (optimizers, norms, checkpoints) includes its shards. If both
//! layers are one tied matrix, its shards are the embedding's. No plan contains these stages.

use crate::tensor_parallel::{Holders, TensorGroup};
use burn_pipeline_plan::plan::StageId;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A layer that is cut into one shard for each rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Piece {
    Embedding,
    Head,
    /// Both, as one tied matrix.
    Tied,
}

impl Piece {
    /// The stage number of the shards, in a model of `stages` stages.
    pub(crate) fn stage(self, stages: usize) -> StageId {
        StageId::new(stages + usize::from(self == Piece::Head))
    }

    /// Its layers: the embedding, the head, or both.
    pub(crate) fn layers(self) -> &'static [Piece] {
        match self {
            Piece::Embedding => &[Piece::Embedding],
            Piece::Head => &[Piece::Head],
            Piece::Tied => &[Piece::Embedding, Piece::Head],
        }
    }
}

impl fmt::Display for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Piece::Embedding => "embedding",
            Piece::Head => "head",
            Piece::Tied => "embedding and the head, which are one matrix",
        })
    }
}

/// The pipeline ranks that hold the shards, and the stages of these shards.
#[derive(Clone, Debug, Default)]
pub(crate) struct VocabularyGroup {
    pub(crate) group: TensorGroup,
    /// The stage of the embedding's shards, if it is vocabulary parallel.
    pub(crate) embedding: Option<StageId>,
    /// The stage of the head's shards, if it is vocabulary parallel.
    pub(crate) head: Option<StageId>,
}

/// The groups of one rank.
#[derive(Clone, Debug, Default)]
pub(crate) struct StageGroups {
    /// The tensor-parallel group of its stages.
    pub(crate) members: TensorGroup,
    /// The data-parallel replicas of its stages.
    pub(crate) replicas: TensorGroup,
    /// The ranks that hold the shards of the vocabulary.
    pub(crate) vocabulary: VocabularyGroup,
}

impl VocabularyGroup {
    /// The group of these shards, in a model of `stages` stages.
    pub(crate) fn new(group: TensorGroup, pieces: &[Piece], stages: usize) -> Self {
        let stage =
            |layer| pieces.iter().find(|piece| piece.layers().contains(&layer)).map(|piece| piece.stage(stages));
        Self { group, embedding: stage(Piece::Embedding), head: stage(Piece::Head) }
    }

    /// Returns true if both layers are one matrix, the embedding's.
    pub(crate) fn is_tied(&self) -> bool {
        self.head.is_some() && self.head == self.embedding
    }

    /// Returns true if neither layer is vocabulary parallel.
    pub(crate) fn is_nothing(&self) -> bool {
        self.embedding.is_none() && self.head.is_none()
    }

    /// Returns true if the stage is one of shards.
    pub(crate) fn holds(&self, stage: StageId) -> bool {
        Some(stage) == self.embedding || Some(stage) == self.head
    }
}

impl StageGroups {
    /// The ranks over which the parameters of a stage, or of shards, are cut.
    pub(crate) fn of(&self, stage: StageId) -> Holders<'_> {
        let members = if self.vocabulary.holds(stage) { &self.vocabulary.group } else { &self.members };
        Holders::new(members, &self.replicas)
    }
}
