//! The mixture-of-experts model as layers for partitioners: its blocks. The first one includes the embeddings, the
//! last one the head and the modules of tokens ahead, as in the stages.

use crate::moe::gpt::{MoeGptConfig, MoeGptError};
use burn_pipeline::cost::{Dtype, Layer, Layers};
use burn_pipeline_moe::cost::MicrobatchSize;
use burn_pipeline_moe::layers::BlockKind;

impl MoeGptConfig {
    /// One layer per block, with parameters and FLOPs, for microbatches of this size.
    ///
    /// # Errors
    /// As [`MoeGptConfig::blocks`].
    pub fn cost_layers(&self, size: MicrobatchSize) -> Result<Layers, MoeGptError> {
        let blocks = self.blocks()?;
        let (kinds, ahead) = blocks.split_at(self.pattern.chars().count());
        let layer = |(place, &kind): (usize, &BlockKind)| self.block_config(place).layer(kind, size);
        let mut layers = kinds.iter().enumerate().map(layer).collect::<Result<Vec<Layer>, _>>()?;
        let tokens = (size.batch * size.seq) as f64;
        if let Some(first) = layers.first_mut() {
            *first = first.clone().with_parameters(self.embed_parameters(), size.dtype);
        }
        if let Some(last) = layers.last_mut() {
            let head = 2.0 * (self.d_model * self.vocab) as f64;
            let (mut parameters, mut flops) = (self.head_parameters(), tokens * head);
            for (place, &kind) in (kinds.len()..).zip(ahead) {
                let block = self.block_config(place).layer(kind, size)?;
                let join = 2 * self.d_model * self.d_model;
                // Two norms, and the matmul that joins hidden states and tokens.
                parameters += block.parameters + (4 * self.d_model + join) as u64;
                flops += block.flops + tokens * (2.0 * join as f64 + head);
            }
            let sum = last.flops + flops;
            *last = last.clone().with_parameters(parameters, size.dtype).with_flops(sum);
        }
        Ok(Layers::new(layers)?)
    }

    /// The number of weights of the whole model, counting tied ones once.
    ///
    /// # Errors
    /// As [`MoeGptConfig::blocks`].
    pub fn parameters(&self) -> Result<usize, MoeGptError> {
        let layers = self.cost_layers(MicrobatchSize { batch: 1, seq: self.seq, dtype: Dtype::F32 })?;
        let relation = (self.relations * self.heads) as u64;
        Ok(layers.all().iter().map(|layer| layer.parameters).sum::<u64>() as usize + relation as usize)
    }

    fn embed_parameters(&self) -> u64 {
        let positions = if self.rotary { 0 } else { self.seq };
        let rows = self.vocab + positions + 2 * self.ngram_buckets + self.structures + self.platforms;
        (rows * self.d_model + if self.squash { 2 * self.d_model + 1 } else { 0 }) as u64
    }

    fn head_parameters(&self) -> u64 {
        (2 * self.d_model + self.d_model * self.vocab + self.vocab) as u64
    }
}
