//! The vocabulary-parallel layers.

use burn_pipeline_plan::plan::StageId;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A layer that is cut into one shard for each rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Piece {
    /// The embedding.
    Embedding,
    /// The head.
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
