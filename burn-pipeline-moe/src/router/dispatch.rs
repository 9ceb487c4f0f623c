//! Dispatch of tokens to experts with equal numbers of rows, and the combination of their outputs.
//!
//! Guarantees: every expert has the same number of rows, its capacity. First choices of all tokens come before second
//! choices, tokens in order within each. A choice whose expert is full is dropped and adds nothing; every kept choice
//! has its own row. Shapes depend only on sizes, so a captured stage can replay this, except with
//! [`Capacity::Dropless`], which reads the largest load.
//!
//! 1. The position of a choice among its expert's rows is the running count of choices for that expert.
//! 2. [`TokenDispatch::dispatch`] copies tokens to rows by index; rows without a token are zero.
//! 3. [`TokenDispatch::combine`] copies results back by index, weighted by the gates; dropped choices read a zero row.
//! 4. [`TokenDispatch::of`] keeps only some of the experts; choices of the others read a zero row too.
//!
//! Choices are prioritized as in Lepikhin et al., "GShard" (2020), algorithm 1.

use crate::ops::{collect, placed, with_zero_row};
use burn::config::Config;
use burn::tensor::{Int, IntDType, Tensor};
use std::ops::Range;

/// How many tokens an expert accepts.
#[derive(Config, Debug, Copy, PartialEq)]
pub enum Capacity {
    /// This many times its even share, at most all tokens. Choices beyond it are dropped.
    Factor(f64),
    /// All of them: nothing is dropped. Without kernels all experts get as many rows as the fullest one, whose load is
    /// read from the device in every forward.
    Dropless,
}

/// The row of each choice.
#[derive(Debug, Clone)]
pub struct TokenDispatch {
    /// The number of choices for each expert, including dropped ones, `[experts]`.
    pub load: Tensor<1, Int>,
    /// The number of dropped choices, `[1]`.
    pub dropped: Tensor<1, Int>,
    /// Rows per expert.
    pub capacity: usize,
    experts: usize,
    tokens: usize,
    /// The token of each row; for an empty row, the number of tokens.
    token_of_row: Tensor<1, Int>,
    /// The row of each choice, first choices first; for a dropped choice, the number of rows.
    row_of_choice: Tensor<1, Int>,
}

impl TokenDispatch {
    /// Dispatches choices `[tokens, k]` to `experts` experts.
    pub fn new(chosen: Tensor<2, Int>, experts: usize, capacity: Capacity) -> Self {
        let ([tokens, top_k], device) = (chosen.dims(), chosen.device());
        let choices = tokens * top_k;
        // Kernels choose in I32, and the device's integers may be others. (A cast could not be replayed.)
        let dtype = chosen.dtype();
        let int = IntDType::from(dtype);
        let all = Tensor::<1, Int>::arange(0..experts as i64, (&device, dtype)).unsqueeze::<2>();
        let chosen = chosen.swap_dims(0, 1).reshape([choices, 1]);
        let falls_on = chosen.clone().expand([choices, experts]).equal(all.expand([choices, experts])).cast(int);
        let load: Tensor<1, Int> = falls_on.clone().sum_dim(0).reshape([experts]);
        let before = (falls_on.clone().cumsum(0) * falls_on).sum_dim(1).sub_scalar(1);
        let capacity = match capacity {
            Capacity::Factor(_) => capacity.limit(choices, experts, tokens),
            Capacity::Dropless => load.clone().max().into_scalar::<i64>() as usize,
        };
        let full = before.clone().greater_equal_scalar(capacity as i64);
        let dropped = full.clone().cast(int).sum();
        let row = chosen.mul_scalar(capacity as i64) + before;
        let row_of_choice = row.mask_fill(full, (experts * capacity) as i64).reshape([choices]);
        let token = Tensor::<1, Int>::arange(0..choices as i64, (&device, dtype)).remainder_scalar(tokens as i64);
        let token_of_row = placed(token, row_of_choice.clone(), experts * capacity, tokens);
        Self { load, dropped, capacity, experts, tokens, token_of_row, row_of_choice }
    }

    /// Keeps only the rows of `experts`; choices of other experts add nothing. Load and dropped choices still count all
    /// experts.
    pub fn of(self, experts: Range<usize>) -> Self {
        let (first, rows) = (experts.start * self.capacity, experts.len() * self.capacity);
        let row = self.row_of_choice.sub_scalar(first as i64);
        let others = row.clone().lower_scalar(0).bool_or(row.clone().greater_equal_scalar(rows as i64));
        Self {
            experts: experts.len(),
            token_of_row: self.token_of_row.narrow(0, first, rows),
            row_of_choice: row.mask_fill(others, rows as i64),
            ..self
        }
    }

    /// Copies tokens `[tokens, d]` to rows of experts `[experts, capacity, d]`.
    pub fn dispatch(&self, tokens: Tensor<2>) -> Tensor<3> {
        let [_, d] = tokens.dims();
        let rows = with_zero_row(tokens).select(0, self.token_of_row.clone());
        rows.reshape([self.experts, self.capacity, d])
    }

    /// Sums the results of experts `[experts, capacity, d]` over each token's choices, weighted by gates `[tokens, k]`,
    /// to `[tokens, d]`.
    pub fn combine(&self, rows: Tensor<3>, gates: Tensor<2>) -> Tensor<2> {
        let [experts, capacity, d] = rows.dims();
        collect(rows.reshape([experts * capacity, d]), Some(gates), self.row_of_choice.clone(), self.tokens)
    }
}

impl Capacity {
    /// The reason why a layer with this capacity cannot be captured, if any; see
    /// [`Stage::skip_capture`](burn_pipeline::stage::Stage::skip_capture).
    pub fn skip_capture(self) -> Option<&'static str> {
        match self {
            Self::Factor(_) => None,
            Self::Dropless => {
                Some("experts without a capacity have as many rows as the largest load, which the forward reads")
            }
        }
    }

    /// The maximum number of rows that an expert accepts, for `choices` choices of `tokens` tokens.
    pub(crate) fn limit(self, choices: usize, experts: usize, tokens: usize) -> usize {
        match self {
            Self::Factor(factor) => {
                assert!(tokens > 0, "a mixture of experts needs at least one token");
                ((factor * choices as f64 / experts as f64).ceil() as usize).clamp(1, tokens)
            }
            Self::Dropless => tokens,
        }
    }
}
