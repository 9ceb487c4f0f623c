//! Rows of different lengths in one batch: each row has a number of valid positions, the rest is padding.
//!
//! Guarantees: attention gives a valid token the same result as in a row without padding, up to rounding, and a padding
//! token attends only to itself. A loss over valid tokens is the batch's mean over them, however the batch is cut. A
//! row may have no valid token; rows without counts are whole.
//!
//! 1. [`RowLengths`] has the number of valid tokens of each row, given directly, or as blocks of one size or of one
//!    size per row. Valid tokens come first.
//! 2. [`RowLengths::documents`] makes each padding token a document of its own. Attention layers already respect
//!    documents, so stages need no further input.
//! 3. [`RowLengths::loss`] excludes padding from the loss, and returns the weight that
//!    [`Reduction::Weighted`](burn_pipeline::Reduction::Weighted) divides by.
//!
//! Routers ignore lengths: padding tokens have experts, count in loads and capacities, and may take the place of a
//! valid token in a mixture of depths. So put rows of similar length into a microbatch
//! ([`Batch::from_microbatches`](burn_pipeline::Batch::from_microbatches)).

use crate::ops::{accumulator, holding_positions};
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
    /// Creates lengths from the number of valid tokens of each row, `[batch]`. A count beyond a row's end means the
    /// whole row.
    pub fn tokens(counts: Tensor<1, Int>) -> Self {
        Self { tokens: holding_positions(counts) }
    }

    /// Creates lengths from the number of valid blocks of each row, `[batch]`, with `block` tokens per block.
    pub fn blocks(counts: Tensor<1, Int>, block: usize) -> Self {
        Self::tokens(holding_positions(counts).mul_scalar(block as i64))
    }

    /// Creates lengths from the number of valid blocks of each row and the tokens per block of that row, both
    /// `[batch]`.
    pub fn blocks_of(counts: Tensor<1, Int>, block: Tensor<1, Int>) -> Self {
        Self::tokens(holding_positions(counts) * holding_positions(block))
    }

    /// The shorter of two lengths of each row, for example if a loader counts slots, which are blocks, and the tokens
    /// in them.
    pub fn shorter(self, other: RowLengths) -> Self {
        Self::tokens(self.tokens.min_pair(other.tokens))
    }

    /// A mask `[batch, seq]`, true where a position of rows of length `seq` is valid.
    pub fn mask(&self, seq: usize) -> Tensor<2, Bool> {
        let ([batch], device) = (self.tokens.dims(), self.tokens.device());
        let positions = Tensor::<1, Int>::arange(0..seq as i64, (&device, self.tokens.dtype()));
        let positions = positions.unsqueeze::<2>().expand([batch, seq]);
        positions.lower(self.tokens.clone().unsqueeze_dim::<2>(1).expand([batch, seq]))
    }

    /// Gives each padding token a document of its own in `documents` `[batch, seq]`, numbered from 0. For
    /// [`AttentionContext`](crate::layers::AttentionContext).
    pub fn documents(&self, documents: Tensor<2, Int>) -> Tensor<2, Int> {
        let ([batch, seq], documents) = (documents.dims(), holding_positions(documents));
        let own = Tensor::<1, Int>::arange(0..seq as i64, (&documents.device(), documents.dtype()));
        let own = own.neg().sub_scalar(1);
        documents.mask_where(self.mask(seq).bool_not(), own.unsqueeze::<2>().expand([batch, seq]))
    }

    /// The sum of the valid tokens' losses `[batch, seq]`, with the number of valid tokens as its weight.
    /// Half-precision losses are added in f32.
    pub fn loss(&self, of_tokens: Tensor<2>) -> Loss {
        let [_, seq] = of_tokens.dims();
        let valid = self.mask(seq);
        // A sum over a microbatch's tokens may exceed the range of f16.
        let wide = accumulator(of_tokens.dtype());
        let of_tokens = of_tokens.cast(wide);
        let sum = of_tokens.mask_fill(valid.clone().bool_not(), 0.0).sum();
        Loss::weighted(sum, valid.int().sum())
    }
}
