//! The flags of `train_moe` for the model's parts beside blocks.

use crate::moe::gpt::MoeGptConfig;
use crate::moe::options::MoeOptionsError;
use crate::moe::sides::{PLATFORMS_OF_TEXT, RELATIONS_OF_TEXT, STRUCTURES_OF_TEXT};
use clap::Args;
use serde::{Deserialize, Serialize};

/// The maximum number of rows of a table of hashed n-grams.
pub(crate) const MOST_BUCKETS: usize = 8_000_000;

/// The flags of the model's parts beside blocks.
#[derive(Args, Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PartOptions {
    /// Predicts tokens after the next one: one letter of the pattern for each.
    #[arg(long, default_value = "", value_name = "LETTERS")]
    pub ahead: String,
    /// The weight of the mean loss of tokens after the next one.
    #[arg(long, default_value_t = 0.3, value_name = "WEIGHT")]
    pub ahead_weight: f64,
    /// The number of bytes that blocks attend to, for the blocks in turn; 0 for all.
    #[arg(long, value_delimiter = ',', value_name = "N,N..")]
    pub windows: Vec<usize>,
    /// Rotary positions instead of learned ones.
    #[arg(long)]
    pub rotary: bool,
    /// Blocks without rotary positions, counted from 0.
    #[arg(long, value_delimiter = ',', requires = "rotary", value_name = "N,N..")]
    pub without_rotary: Vec<usize>,
    /// Embeds the last two and three bytes too, hashed into tables of this many rows; 0 for none.
    #[arg(long, default_value_t = 0, value_name = "ROWS")]
    pub ngram: usize,
    /// Embeds the kind of each byte: letter, capital, space, new line, other.
    #[arg(long)]
    pub structure: bool,
    /// Embeds how a window starts: within a word, before one, on a new line.
    #[arg(long)]
    pub platform: bool,
    /// Multiplies embeddings of bytes by the square root of the width.
    #[arg(long)]
    pub scale_embeddings: bool,
    /// Squashes embeddings with a dynamic tanh.
    #[arg(long)]
    pub squash: bool,
    /// Adds an attention bias for bytes of one line, and of one word; all stages share one table.
    #[arg(long)]
    pub relations: bool,
}

impl PartOptions {
    /// The model with these parts.
    pub(crate) fn model(&self, model: MoeGptConfig) -> Result<MoeGptConfig, MoeOptionsError> {
        let (ahead, buckets, value) = (self.ahead.clone(), self.ngram, self.ahead_weight);
        if !value.is_finite() || value < 0.0 {
            return Err(MoeOptionsError::Size { flag: "ahead-weight", value });
        }
        if ahead.len() >= model.seq {
            return Err(MoeOptionsError::Ahead { ahead, seq: model.seq });
        }
        if buckets > MOST_BUCKETS {
            return Err(MoeOptionsError::Buckets { buckets });
        }
        let count = |asked: bool, count: usize| if asked { count } else { 0 };
        let model = model.with_ahead(ahead).with_ahead_weight(value).with_windows(self.windows.clone());
        let model = model.with_rotary(self.rotary).with_without_rotary(self.without_rotary.clone());
        let model = model.with_ngram_buckets(buckets).with_squash(self.squash);
        let model = model.with_scale_embeddings(self.scale_embeddings);
        let model = model.with_structures(count(self.structure, STRUCTURES_OF_TEXT));
        let model = model.with_platforms(count(self.platform, PLATFORMS_OF_TEXT));
        let model = model.with_relations(count(self.relations, RELATIONS_OF_TEXT));
        let (blocks, d_model, heads) = (model.blocks()?.len(), model.d_model, model.heads);
        let rotates = self.rotary && (0..blocks).any(|block| !self.without_rotary.contains(&block));
        if rotates && !(d_model / heads).is_multiple_of(2) {
            return Err(MoeOptionsError::OddHeads { d_model, heads });
        }
        Ok(model)
    }
}
