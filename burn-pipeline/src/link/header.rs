//! The header of a message: what kind of message it is, and which stage and microbatch it is about.
//!
//! The kinds are one closed list, although rooms above this one use them, for two reasons. A rank that gets another
//! message than it waits for names both in its error, so it must know each kind that can arrive; kinds that those rooms
//! defined would need a text in every message or a table of names here. And a header with a kind that does not exist is
//! refused when it is read. Links move all kinds alike.

use crate::payload::Payload;
use burn_pipeline_plan::plan::StageId;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What a message carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub enum MessageKind {
    /// The output of the previous stage.
    Activation,
    /// The gradient of the stage's output, from the next stage.
    Gradient,
    /// A value from a stage that is not the previous one (a skip connection).
    Skip {
        /// The index of the stage that computed the value.
        from: usize,
    },
    /// The gradient of a value that a later stage than the next one used.
    SkipGradient {
        /// The index of the stage that used the value.
        from: usize,
    },
    /// An output of the last stage, for a rank that requested it.
    Output,
    /// Weights or weight gradients of a stage, for a data-parallel replica of it.
    Replica,
    /// A replica's piece of a stage's gradients, to be summed by the receiver.
    ReplicaGradient,
    /// A piece of a stage's gradients, summed over the replicas.
    ReplicaSum,
    /// A replica's shard of a stage's parameters.
    ParameterShard,
    /// A replica's shard of other tensors of a stage: gradients or optimizer state.
    TensorShard,
    /// Tensors of a collective operation over a group of ranks.
    Collective {
        /// The set's number, the same on all ranks.
        group: usize,
    },
    /// Tensors outside of any plan: weights that were requested, or that are written to a file.
    Tensors {
        /// The position of the message in its transfer.
        index: usize,
    },
    /// A message that is sent only to measure the link.
    Timing,
    /// A tensor of a collective of a tensor-parallel group.
    Member,
    /// A rank has reached the end of its row, for the members of its tensor-parallel groups.
    RowEnd,
    /// The last stage's output, for this rank's shard of the head.
    Hidden,
    /// What a rank's shard of the head computed from the last stage's output.
    HeadPart {
        /// The pipeline rank that sends it.
        from: usize,
    },
    /// What a rank's shard of the embedding contributes to the first stage's input.
    EmbeddingPart {
        /// The pipeline rank that sends it.
        from: usize,
    },
    /// The gradient of the first stage's input, for this rank's shard of the embedding.
    EmbeddingGradient,
}

/// What a message is about. A receiver names the message that it waits for by its header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub struct Header {
    /// What it carries.
    pub kind: MessageKind,
    /// The stage that the message is for; stage 0 where the kind is about no stage.
    pub stage: StageId,
    /// The microbatch's index within its route; 0 where the kind is about no microbatch.
    pub microbatch: usize,
}

impl Header {
    /// The header of a message about a stage, but no microbatch.
    pub fn of_stage(kind: MessageKind, stage: StageId) -> Self {
        Self { kind, stage, microbatch: 0 }
    }

    /// The header of a message that is about no stage.
    pub fn of(kind: MessageKind) -> Self {
        Self::of_stage(kind, StageId::new(0))
    }
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, stage, microbatch } = self;
        match kind {
            MessageKind::Activation => write!(f, "the input of stage {stage} for microbatch {microbatch}"),
            MessageKind::Gradient => write!(f, "the output gradient of stage {stage} for microbatch {microbatch}"),
            MessageKind::Output => write!(f, "the output of stage {stage} for microbatch {microbatch}"),
            MessageKind::Skip { from } => {
                write!(f, "the value from stage {from} for stage {stage}, microbatch {microbatch}")
            }
            MessageKind::SkipGradient { from } => {
                write!(f, "the gradient from stage {from} for stage {stage}, microbatch {microbatch}")
            }
            MessageKind::Replica => write!(f, "the other replica's tensors for stage {stage}"),
            MessageKind::ReplicaGradient => write!(f, "a replica's gradients of stage {stage}"),
            MessageKind::ReplicaSum => write!(f, "a replica's summed gradients of stage {stage}"),
            MessageKind::ParameterShard => write!(f, "a replica's shard of stage {stage}"),
            MessageKind::TensorShard => write!(f, "a replica's shard of the tensors of stage {stage}"),
            MessageKind::Collective { group } => write!(f, "the tensors of group {group}"),
            MessageKind::Tensors { index } => write!(f, "message {index} of a transfer of tensors"),
            MessageKind::Member => write!(f, "the group's tensor of stage {stage}, microbatch {microbatch}"),
            MessageKind::RowEnd => f.write_str("the end of its row"),
            MessageKind::Timing => f.write_str("a message that is timed"),
            MessageKind::Hidden => write!(f, "the output of stage {stage} for the head, microbatch {microbatch}"),
            MessageKind::HeadPart { from } => {
                write!(f, "what rank {from}'s piece of the head computed, microbatch {microbatch}")
            }
            MessageKind::EmbeddingPart { from } => {
                write!(f, "the vectors of rank {from}'s piece of the embedding, microbatch {microbatch}")
            }
            MessageKind::EmbeddingGradient => {
                write!(f, "the gradient of stage {stage}'s input for the embedding, microbatch {microbatch}")
            }
        }
    }
}

/// A message between two ranks.
#[derive(Clone, Debug)]
pub struct Message {
    /// What it is about.
    pub header: Header,
    /// The tensors.
    pub payload: Payload,
}
