//! Rows of several lengths in one batch: how many positions of each row are valid; the rest is padding.
//!
//! Guarantees: attention gives a valid token what it gives it in a row without padding, up to rounding, and a padding token
//! sees itself alone; a loss over valid tokens is the batch's mean over them, however the batch is cut. A row may have no valid token;
//! rows without counts are whole, never empty.
//!
//! 1. [`RowLengths`] has the number of valid tokens of each row, given as such, or as blocks of one size or of a size for
//!    each row. Valid tokens come first.
//! 2. [`RowLengths::documents`] makes each padding token a document of its own. Every attention layer keeps to documents
//!    already, so stages read no more than before.
//! 3. [`RowLengths::loss`] leaves padding out of the loss, and gives the weight that
//!    [`Reduction::Weighted`](burn_pipeline::Reduction::Weighted) divides by.
//!
//! Routers do not know of padding: it has experts, counts in loads and capacities, and may take the place of a valid token in
//! a mixture of depths. Cut batches so that rows of a microbatch have about one length
//! ([`Batch::from_microbatches`](burn_pipeline::Batch::from_microbatches)).

use burn::tensor::{Bool, Int, Tensor};
use burn_pipeline::stage::Loss;

/// The number of valid tokens at the start of each row.
///
/// ```
/// use burn::tensor::{Device, Int, Tensor};
/// use burn_pipeline_moe::lengths::RowLengths;
///
/// let ints = |values: [i64; 2]| Tensor::<1, Int>::from_ints(values, &Device::flex());
/// // Two blocks of one token, and one block of three.
/// let lengths = RowLengths::blocks_of(ints([2, 1]), ints([1, 3]));
/// let documents = lengths.documents(Tensor::zeros([2, 4], &Device::flex()));
/// let found: Vec<i64> = documents.into_data().iter::<i64>().collect();
/// assert_eq!(found, [0, 0, -3, -4, 0, 0, 0, -4]);
/// ```
#[derive(Debug, Clone)]
pub struct RowLengths {
    tokens: Tensor<1, Int>,
}

impl RowLengths {
    /// Rows with so many valid tokens, `[batch]`. A count beyond a row's end means the whole row.
    pub fn tokens(counts: Tensor<1, Int>) -> Self {
        Self { tokens: counts }
    }

    /// Rows with so many valid blocks, `[batch]`, of `block` tokens each.
    pub fn blocks(counts: Tensor<1, Int>, block: usize) -> Self {
        Self::tokens(counts.mul_scalar(block as i64))
    }

    /// Rows with so many valid blocks, `[batch]`, of as many tokens as `block`, `[batch]`, says of each row.
    pub fn blocks_of(counts: Tensor<1, Int>, block: Tensor<1, Int>) -> Self {
        Self::tokens(counts * block)
    }

    /// The shorter of two lengths of each row: where a loader counts slots, which are blocks, and the tokens within them.
    pub fn shorter(self, other: RowLengths) -> Self {
        Self::tokens(self.tokens.min_pair(other.tokens))
    }

    /// True where a position of rows of length `seq` is valid, `[batch, seq]`.
    pub fn mask(&self, seq: usize) -> Tensor<2, Bool> {
        let ([batch], device) = (self.tokens.dims(), self.tokens.device());
        let positions = Tensor::<1, Int>::arange(0..seq as i64, &device).unsqueeze::<2>().expand([batch, seq]);
        positions.lower(self.tokens.clone().unsqueeze_dim::<2>(1).expand([batch, seq]))
    }

    /// These documents `[batch, seq]`, numbered from 0, with each padding token in a document of its own: for
    /// [`AttentionContext`](crate::layers::AttentionContext).
    pub fn documents(&self, documents: Tensor<2, Int>) -> Tensor<2, Int> {
        let [batch, seq] = documents.dims();
        let own = Tensor::<1, Int>::arange(0..seq as i64, &documents.device()).neg().sub_scalar(1);
        documents.mask_where(self.mask(seq).bool_not(), own.unsqueeze::<2>().expand([batch, seq]))
    }

    /// The sum of the valid tokens' losses `[batch, seq]`, with their number as its weight.
    pub fn loss(&self, of_tokens: Tensor<2>) -> Loss {
        let [_, seq] = of_tokens.dims();
        let valid = self.mask(seq);
        let sum = of_tokens.mask_fill(valid.clone().bool_not(), 0.0).sum();
        Loss::weighted(sum, valid.int().sum())
    }
}
