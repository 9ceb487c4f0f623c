//! The ranks that hold a rank's stages together with it, and those that hold the pieces of the vocabulary.
//!
//! The pieces of the embedding are stage `stages`, and those of the head stage `stages + 1`, on all ranks: so whatever goes through a
//! rank's stages (optimizers, norms, checkpoints) goes through its pieces too. Where both layers are one matrix, its pieces are the
//! embedding's. No plan names them.

use super::piece::Piece;
use crate::plan::StageId;
use crate::tensor_group::{Holders, TensorGroup};

/// The pipeline ranks that hold the pieces, and which pieces there are.
#[derive(Clone, Debug, Default)]
pub(crate) struct VocabularyGroup {
    group: TensorGroup,
    embedding: Option<StageId>,
    head: Option<StageId>,
}

/// The groups of one rank.
#[derive(Clone, Debug, Default)]
pub(crate) struct StageGroups {
    /// The ranks that hold its stages together.
    pub(crate) members: TensorGroup,
    /// The data-parallel replicas of its stages.
    pub(crate) replicas: TensorGroup,
    /// The ranks that hold the pieces of the vocabulary.
    pub(crate) vocabulary: VocabularyGroup,
}

impl VocabularyGroup {
    /// The group of these pieces, beside so many stages.
    pub(crate) fn new(group: TensorGroup, pieces: &[Piece], stages: usize) -> Self {
        let stage =
            |layer| pieces.iter().find(|piece| piece.layers().contains(&layer)).map(|piece| piece.stage(stages));
        Self { group, embedding: stage(Piece::Embedding), head: stage(Piece::Head) }
    }

    /// The ranks.
    pub(crate) fn group(&self) -> &TensorGroup {
        &self.group
    }

    /// The number of the embedding's pieces, if it is spread.
    pub(crate) fn embedding(&self) -> Option<StageId> {
        self.embedding
    }

    /// The number of the head's pieces, if it is spread.
    pub(crate) fn head(&self) -> Option<StageId> {
        self.head
    }

    /// Are both layers one matrix, that of the embedding?
    pub(crate) fn is_tied(&self) -> bool {
        self.head.is_some() && self.head == self.embedding
    }

    /// Is nothing spread?
    pub(crate) fn is_nothing(&self) -> bool {
        self.embedding.is_none() && self.head.is_none()
    }

    /// Is it the number of pieces, and not that of a stage?
    pub(crate) fn holds(&self, stage: StageId) -> bool {
        Some(stage) == self.embedding || Some(stage) == self.head
    }
}

impl StageGroups {
    /// Forgets that the ends of rows are to come: see [`TensorGroup::forget_ends`].
    pub(crate) fn forget_ends(&self) {
        [&self.members, &self.replicas, &self.vocabulary.group].into_iter().for_each(TensorGroup::forget_ends);
    }

    /// The ranks among which the parameters of a stage, or of pieces, are cut.
    pub(crate) fn of(&self, stage: StageId) -> Holders<'_> {
        let members = if self.vocabulary.holds(stage) { &self.vocabulary.group } else { &self.members };
        Holders::new(members, &self.replicas)
    }
}
