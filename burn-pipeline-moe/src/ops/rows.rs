//! Tokens permuted into rows that are sorted by expert, without gaps, and back.
//!
//! Guarantees: the rows of an expert are adjacent, experts in order, each with as many rows as it needs. First choices
//! of all tokens come before second choices, tokens in order within each. A choice whose expert is full has no row and
//! adds nothing. There are always `tokens * k` rows; rows without a choice come last and are zero. Shapes depend only
//! on sizes, and nothing is read back.
//!
//! 1. Choices are numbered `j * tokens + t` for choice `j` of token `t`. [`PackedRows::new`] computes the row of each
//!    choice, and the inverse, the choice of each row.
//! 2. [`PackedRows::permute`] copies tokens to rows; its backward adds each token's rows.
//! 3. [`PackedRows::unpermute`] adds each token's rows, weighted by its gates. Its backward copies the gradients back,
//!    weighted, and takes dot products of rows and gradients for the gates. Neither direction needs atomic additions,
//!    because both maps are known.
//!
//! Gale et al., "MegaBlocks" (2022), section 5; the priority of choices is that of Lepikhin et al., "GShard" (2020).

use super::backend::MoeOps;
use super::kernel_device::refuse_type;
use burn::backend::Dispatch;
use burn::tensor::{IndexingUpdateOp, Int, Tensor};

/// The row of each choice, and the choice of each row.
#[derive(Debug, Clone)]
pub struct PackedRows {
    /// The first row of each expert, then the first row of no expert: `[experts + 1]`.
    pub offsets: Tensor<1, Int>,
    /// The row of each choice, first choices first, `[tokens * k]`; for a choice without a row, the number of rows.
    pub row_of_choice: Tensor<1, Int>,
    /// The choice of each row, `[tokens * k]`; for a row without a choice, the number of choices.
    pub choice_of_row: Tensor<1, Int>,
    tokens: usize,
    top_k: usize,
}

impl PackedRows {
    /// Assigns rows to choices `[tokens, k]` with this load `[experts]`. An expert accepts at most `capacity` choices.
    pub fn new(experts: Tensor<2, Int>, load: Tensor<1, Int>, capacity: usize) -> Self {
        let [tokens, top_k] = experts.dims();
        // A larger capacity has the same effect, and might overflow the integers that it is compared with.
        let capacity = capacity.min(tokens * top_k);
        if tokens * top_k == 0 {
            let (none, device) = (Tensor::zeros_like(&load), load.device());
            let empty = Tensor::zeros([0], (&device, load.dtype()));
            let offsets = Tensor::cat(vec![none, Tensor::zeros([1], (&device, load.dtype()))], 0);
            return Self { offsets, row_of_choice: empty.clone(), choice_of_row: empty, tokens, top_k };
        }
        let (offsets, row_of_choice, choice_of_row) =
            Dispatch::place(experts.into_dispatch(), load.into_dispatch(), capacity);
        Self {
            offsets: Tensor::from_dispatch(offsets),
            row_of_choice: Tensor::from_dispatch(row_of_choice),
            choice_of_row: Tensor::from_dispatch(choice_of_row),
            tokens,
            top_k,
        }
    }

    /// Copies tokens `[tokens, d]` to rows `[tokens * k, d]`.
    ///
    /// # Panics
    /// Panics if the number of tokens differs from that of the choices, or if a device with kernels does not compute in
    /// their element type.
    pub fn permute(&self, tokens: Tensor<2>) -> Tensor<2> {
        assert_eq!(tokens.dims()[0], self.tokens, "the number of tokens must be that of the choices");
        if self.tokens == 0 {
            return tokens;
        }
        refuse_type(&tokens);
        let (choices, rows) = (self.choice_of_row.clone(), self.row_of_choice.clone());
        Tensor::from_dispatch(Dispatch::permute(tokens.into_dispatch(), choices.into_dispatch(), rows.into_dispatch()))
    }

    /// Sums rows `[tokens * k, d]` over each token's choices, weighted by gates `[tokens, k]`, to `[tokens, d]`.
    ///
    /// # Panics
    /// Panics if the number of rows or gates differs from that of choices, their element types differ, or a device with
    /// kernels does not compute in this type.
    pub fn unpermute(&self, rows: Tensor<2>, gates: Tensor<2>) -> Tensor<2> {
        assert_eq!(gates.dims(), [self.tokens, self.top_k], "there must be one gate for each choice");
        assert_eq!(rows.dims()[0], self.tokens * self.top_k, "there must be one row for each choice");
        let (of_rows, of_gates) = (rows.dtype(), gates.dtype());
        assert_eq!(of_rows, of_gates, "dtype mismatch: rows are {of_rows:?}, and gates {of_gates:?}");
        if self.tokens == 0 {
            return rows;
        }
        refuse_type(&rows);
        let (choices, places) = (self.choice_of_row.clone(), self.row_of_choice.clone());
        let (rows, gates) = (rows.into_dispatch(), gates.into_dispatch());
        Tensor::from_dispatch(Dispatch::unpermute(rows, gates, choices.into_dispatch(), places.into_dispatch()))
    }
}

pub(super) fn composed_place(
    chosen: Tensor<2, Int>,
    load: Tensor<1, Int>,
    capacity: usize,
) -> (Tensor<1, Int>, Tensor<1, Int>, Tensor<1, Int>) {
    let ([tokens, k], [experts], device) = (chosen.dims(), load.dims(), chosen.device());
    let choices = tokens * k;
    let taken = load.clamp_max(capacity as i64);
    let zero = Tensor::<1, Int>::zeros([1], (&device, taken.dtype()));
    let offsets = Tensor::cat(vec![zero, taken.cumsum(0)], 0);
    let chosen = chosen.swap_dims(0, 1).reshape([choices, 1]);
    // Numbers of another integer type than the device's own stay what they are.
    let all = Tensor::<1, Int>::arange(0..experts as i64, (&device, chosen.dtype()));
    let all = all.unsqueeze::<2>().expand([choices, experts]);
    let falls_on = chosen.clone().expand([choices, experts]).equal(all).int().cast(chosen.dtype());
    let before = (falls_on.clone().cumsum(0) * falls_on).sum_dim(1).sub_scalar(1).reshape([choices]);
    let full = before.clone().greater_equal_scalar(capacity as i64);
    let row = offsets.clone().select(0, chosen.reshape([choices])).cast(before.dtype()) + before;
    let row_of_choice = row.mask_fill(full, choices as i64);
    let numbers = Tensor::<1, Int>::arange(0..choices as i64, (&device, row_of_choice.dtype()));
    let choice_of_row = placed(numbers, row_of_choice.clone(), choices, choices);
    (offsets, row_of_choice, choice_of_row)
}

/// The number in each of `rows` rows, given the row of each number; `empty` in rows without a number. Numbers without a
/// row have `rows` as theirs.
pub(crate) fn placed(
    numbers: Tensor<1, Int>,
    row_of_number: Tensor<1, Int>,
    rows: usize,
    empty: usize,
) -> Tensor<1, Int> {
    // Rows start as empty, and a number adds its difference, because every backend has a scatter with addition. Numbers
    // without a row all write to one extra row, which is cut off.
    let start = Tensor::<1, Int>::full([rows + 1], empty as i64, (&numbers.device(), numbers.dtype()));
    let differences = numbers.sub_scalar(empty as i64);
    start.scatter(0, row_of_number, differences, IndexingUpdateOp::Add).narrow(0, 0, rows)
}

/// Appends a row of zeros.
pub(crate) fn with_zero_row(rows: Tensor<2>) -> Tensor<2> {
    let [_, d] = rows.dims();
    let zero = Tensor::zeros([1, d], (&rows.device(), rows.dtype()));
    Tensor::cat(vec![rows, zero], 0)
}

/// Copies tokens `[t, d]` to the rows of their choices, times the gates if given.
pub(super) fn spread(tokens: Tensor<2>, gates: Option<Tensor<2>>, choice_of_row: Tensor<1, Int>) -> Tensor<2> {
    let ([count, d], [choices]) = (tokens.dims(), choice_of_row.dims());
    match gates {
        None => {
            let none = choice_of_row.clone().greater_equal_scalar(choices as i64);
            let token = choice_of_row.remainder_scalar(count as i64).mask_fill(none, count as i64);
            with_zero_row(tokens).select(0, token)
        }
        Some(gates) => {
            let k = choices / count;
            let of_choice = gates.swap_dims(0, 1).reshape([k, count, 1]) * tokens.unsqueeze::<3>();
            with_zero_row(of_choice.reshape([choices, d])).select(0, choice_of_row)
        }
    }
}

/// The row of each choice, `[k, t, d]`; zeros for a choice without a row.
fn of_choices(rows: Tensor<2>, row_of_choice: Tensor<1, Int>, tokens: usize) -> Tensor<3> {
    let ([_, d], [choices]) = (rows.dims(), row_of_choice.dims());
    with_zero_row(rows).select(0, row_of_choice).reshape([choices / tokens.max(1), tokens, d])
}

/// Adds the rows of each token's choices, times the gates if given.
pub(crate) fn collect(
    rows: Tensor<2>,
    gates: Option<Tensor<2>>,
    row_of_choice: Tensor<1, Int>,
    tokens: usize,
) -> Tensor<2> {
    let of_choice = of_choices(rows, row_of_choice, tokens);
    let [k, _, d] = of_choice.dims();
    let weighted = match gates {
        Some(gates) => of_choice * gates.swap_dims(0, 1).reshape([k, tokens, 1]),
        None => of_choice,
    };
    weighted.sum_dim(0).reshape([tokens, d])
}

pub(super) fn composed_gates_backward(
    of_tokens: Tensor<2>,
    rows: Tensor<2>,
    row_of_choice: Tensor<1, Int>,
) -> Tensor<2> {
    let ([tokens, _], [choices, _]) = (of_tokens.dims(), rows.dims());
    let products = of_choices(rows, row_of_choice, tokens) * of_tokens.unsqueeze::<3>();
    products.sum_dim(2).reshape([choices / tokens, tokens]).swap_dims(0, 1)
}
