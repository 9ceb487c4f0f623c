//! Structure embeddings for models of code: up to five parser features per token, each with its own table.
//!
//! Guarantees: a token gets the sum of the rows of all its ids. Missing ids, and ids without a table, add nothing. An
//! id beyond its table's end counts as the last one, because a tree may be deeper than a table.

use super::initial::SMALL;
use burn::config::Config;
use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig};
use burn::tensor::{Device, Int, Tensor};
use burn_pipeline::ops::DeferredForward;

/// The rows of each table; 0 for no table.
#[derive(Config, Debug)]
pub struct StructureEmbeddingConfig {
    /// Width of the hidden state.
    pub d_model: usize,
    /// Kinds of structure (function, type, comment, ..).
    #[config(default = 0)]
    pub structures: usize,
    /// Levels of dependency among chunks of code.
    #[config(default = 0)]
    pub dependency_levels: usize,
    /// Depths in the syntax tree.
    #[config(default = 0)]
    pub depths: usize,
    /// Places among siblings in the syntax tree.
    #[config(default = 0)]
    pub siblings: usize,
    /// Types of nodes of the syntax tree.
    #[config(default = 0)]
    pub node_types: usize,
}

/// Ids of tokens, `[batch, seq]` each.
#[derive(Debug, Clone, Default)]
#[allow(missing_docs, reason = "each belongs to the table of the same name")]
pub struct StructureIds {
    pub structures: Option<Tensor<2, Int>>,
    pub dependency_levels: Option<Tensor<2, Int>>,
    pub depths: Option<Tensor<2, Int>>,
    pub siblings: Option<Tensor<2, Int>>,
    pub node_types: Option<Tensor<2, Int>>,
}

/// Adds up to five embeddings to each token.
#[derive(Module, Debug)]
pub struct StructureEmbedding {
    structures: Option<Embedding>,
    dependency_levels: Option<Embedding>,
    depths: Option<Embedding>,
    siblings: Option<Embedding>,
    node_types: Option<Embedding>,
}

impl StructureEmbeddingConfig {
    /// Initializes the tables.
    pub fn init(&self, device: &Device) -> StructureEmbedding {
        let table = |rows: usize| {
            (rows > 0).then(|| EmbeddingConfig::new(rows, self.d_model).with_initializer(SMALL).init(device))
        };
        StructureEmbedding {
            structures: table(self.structures),
            dependency_levels: table(self.dependency_levels),
            depths: table(self.depths),
            siblings: table(self.siblings),
            node_types: table(self.node_types),
        }
    }
}

impl StructureEmbedding {
    /// Adds the rows of the tokens' ids to hidden states `[batch, seq, d_model]`.
    pub fn add(&self, x: Tensor<3>, ids: StructureIds) -> Tensor<3> {
        let pairs = [
            (&self.structures, ids.structures),
            (&self.dependency_levels, ids.dependency_levels),
            (&self.depths, ids.depths),
            (&self.siblings, ids.siblings),
            (&self.node_types, ids.node_types),
        ];
        pairs.into_iter().fold(x, |x, (table, ids)| match (table, ids) {
            (Some(table), Some(ids)) => {
                let [rows, _] = table.weight.dims();
                x + table.forward_deferred(ids.clamp(0, rows as i64 - 1))
            }
            _ => x,
        })
    }
}
