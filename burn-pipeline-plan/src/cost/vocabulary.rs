//! The costs of vocabulary parallelism over all ranks: each rank's piece of the head and of the embedding.
//!
//! All ranks have equal pieces. The head's work is divided as in Algorithm 2 of Yeung et al. 2024 (arXiv:2411.05288):
//! `S` computes the logits and the input's gradient, `T` the gradient of the weights.

use super::amount::{amounts, is_default};
use super::layer::Layer;
use super::link::LinkCosts;
use crate::plan::Op;
use serde::{Deserialize, Serialize};

/// Seconds and bytes of one rank's pieces of head and embedding, for one microbatch where they depend on it.
///
/// ```
/// use burn_pipeline_plan::cost::{Layer, VocabularyCost};
/// let head = Layer::new('L').with_seconds(8.0, 8.0, 4.0);
/// let cost = VocabularyCost::of_layers(&Layer::new('E'), &head, 100.0, 4);
/// assert_eq!((cost.head_forward, cost.head_input, cost.head_weight, cost.hidden_bytes), (2.0, 2.0, 1.0, 100.0));
/// ```
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct VocabularyCost {
    /// Seconds of the head's forward: the part of `S` that evaluation also runs.
    pub head_forward: f64,
    /// Seconds of the gradient of the head's input: the rest of `S`, in training.
    pub head_input: f64,
    /// Seconds of the gradient of the head's weights: `T`.
    pub head_weight: f64,
    /// Seconds of the embedding's forward: `IF`.
    pub embedding_forward: f64,
    /// Seconds of the gradient of the embedding's weights: `IB`.
    pub embedding_weight: f64,
    /// Bytes that the head saves from `S` to `T`: its input, and the softmax over its piece.
    pub head_activation_bytes: f64,
    /// Bytes of parameters of both pieces, which stay on the rank during the whole step.
    pub weight_bytes: f64,
    /// Bytes of the last stage's output, which `BCAST_S` sends, and of its gradient, which `REDUCE_S` sums.
    pub hidden_bytes: f64,
    /// Bytes of the first stage's input, which `REDUCE_IF` sums, and of its gradient, which `BCAST_IB` sends.
    pub embedded_bytes: f64,
    /// Bytes of the softmax's statistics, which `REDUCE_S` combines.
    #[serde(skip_serializing_if = "is_default")]
    pub statistics_bytes: f64,
}

impl VocabularyCost {
    /// The pieces of an embedding and a head over `ranks` ranks. `hidden_bytes` are those of the head's input.
    ///
    /// Seconds, parameters and the head's activations are divided evenly; every rank holds the whole input of the
    /// head. If this is too rough, measure the pieces.
    pub fn of_layers(embedding: &Layer, head: &Layer, hidden_bytes: f64, ranks: usize) -> Self {
        let ranks = ranks.max(1) as f64;
        Self {
            head_forward: head.forward / ranks,
            head_input: head.input / ranks,
            head_weight: head.weight / ranks,
            embedding_forward: embedding.forward / ranks,
            embedding_weight: embedding.full_backward() / ranks,
            head_activation_bytes: hidden_bytes + head.activation_bytes / ranks,
            weight_bytes: (embedding.parameter_bytes() as f64 + head.parameter_bytes() as f64) / ranks,
            hidden_bytes,
            embedded_bytes: embedding.output_bytes,
            statistics_bytes: 0.0,
        }
    }

    /// The same pieces for microbatches of `factor` times the size, as in
    /// [`Layers::scaled`](super::Layers::scaled): the first `fixed` seconds of each operation do not change, and
    /// neither do parameters.
    pub(crate) fn scaled(&self, factor: f64, fixed: f64) -> Self {
        let seconds = |of: f64| fixed.min(of) + (of - fixed).max(0.0) * factor;
        Self {
            head_activation_bytes: self.head_activation_bytes * factor,
            hidden_bytes: self.hidden_bytes * factor,
            embedded_bytes: self.embedded_bytes * factor,
            statistics_bytes: self.statistics_bytes * factor,
            ..self.map_seconds([seconds; 3])
        }
    }

    /// The seconds of the pieces between a microbatch's input and the gradient of it, on ranks that work
    /// concurrently.
    pub(crate) fn there_and_back(&self) -> f64 {
        self.embedding_forward + self.head_forward + self.head_input
    }

    /// The seconds of all pieces of one rank for one microbatch in training.
    pub fn seconds(&self) -> f64 {
        let head = self.head_forward + self.head_input + self.head_weight;
        head + self.embedding_forward + self.embedding_weight
    }

    /// The seconds that a piece keeps its rank busy.
    pub(crate) fn piece_seconds(&self, op: Op, training: bool) -> f64 {
        match op {
            Op::HeadForward => self.head_forward + if training { self.head_input } else { 0.0 },
            Op::HeadBackward => self.head_weight,
            Op::EmbeddingForward => self.embedding_forward,
            Op::EmbeddingBackward => self.embedding_weight,
            _ => 0.0,
        }
    }

    /// The seconds of a collective of all ranks: a chain over the ring of ranks, and two turns of the ring for
    /// statistics.
    pub(crate) fn collective_seconds(&self, op: Op, links: &LinkCosts, ranks: usize) -> f64 {
        match op {
            Op::BroadcastHidden => links.chain_seconds(ranks, self.hidden_bytes),
            Op::ReduceHead => {
                links.all_reduce_seconds(ranks, self.statistics_bytes) + links.chain_seconds(ranks, self.hidden_bytes)
            }
            Op::ReduceEmbedding | Op::BroadcastGradient => links.chain_seconds(ranks, self.embedded_bytes),
            _ => 0.0,
        }
    }

    /// The same pieces with other seconds of forwards, of gradients of the input, and of gradients of weights.
    pub(super) fn map_seconds(self, [forward, input, weight]: [impl Fn(f64) -> f64; 3]) -> Self {
        Self {
            head_forward: forward(self.head_forward),
            head_input: input(self.head_input),
            head_weight: weight(self.head_weight),
            embedding_forward: forward(self.embedding_forward),
            embedding_weight: weight(self.embedding_weight),
            ..self
        }
    }
}

amounts!(
    VocabularyCost: head_forward, head_input, head_weight, embedding_forward, embedding_weight, head_activation_bytes,
    weight_bytes, hidden_bytes, embedded_bytes, statistics_bytes; of any sign:
);
