//! The row of each choice, from a running count of each expert's choices, computed in parts.
//!
//! 1. In each part of the choices, each expert's choices are counted.
//! 2. Each expert's counts are summed: how many of its choices come before each part, and where its rows start.
//! 3. Each expert walks each part again and assigns rows to its choices. Parts run in parallel, because (2) gave each
//!    its first row. A part is walked in order, so rows have the order of choices without atomics.

use super::launch::{INT, PART, empty, filled, launch};
use burn::backend::TensorMetadata;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

/// The expert of a choice; choices are numbered `j * tokens + t`.
#[cube]
fn expert_of(chosen: &Tensor<i32>, choice: usize, tokens: usize, #[comptime] k: usize) -> i32 {
    chosen[choice % tokens * k + choice / tokens]
}

/// One unit per expert and part: counts its choices in that part.
#[cube(launch, address_type = "dynamic")]
fn count_in_parts(
    chosen: &Tensor<i32>,
    counts: &mut Tensor<i32>,
    tokens: usize,
    experts: usize,
    parts: usize,
    #[comptime] k: usize,
    #[comptime] part: usize,
) {
    let index = ABSOLUTE_POS;
    if index >= parts * experts {
        terminate!();
    }
    let expert = i32::cast_from(index % experts);
    let first = index / experts * part;
    let mut count = 0i32;
    for choice in first..min(first + part, tokens * k) {
        if expert_of(chosen, choice, tokens, k) == expert {
            count += 1i32;
        }
    }
    counts[index] = count;
}

/// One unit per expert: replaces the counts by the number of choices before each part, and writes the expert's number
/// of rows.
#[cube(launch, address_type = "dynamic")]
fn count_before_parts(counts: &mut Tensor<i32>, rows: &mut Tensor<i32>, experts: usize, parts: usize, capacity: i32) {
    let expert = ABSOLUTE_POS;
    if expert >= experts {
        terminate!();
    }
    let mut before = 0i32;
    for part in 0..parts {
        let count = counts[part * experts + expert];
        counts[part * experts + expert] = before;
        before += count;
    }
    rows[expert] = min(before, capacity);
}

/// One unit per expert and one for the end: computes where rows start.
#[cube(launch, address_type = "dynamic")]
fn first_rows(rows: &Tensor<i32>, offsets: &mut Tensor<i32>, experts: usize) {
    let expert = ABSOLUTE_POS;
    if expert > experts {
        terminate!();
    }
    let mut first = 0i32;
    for other in 0..expert {
        first += rows[other];
    }
    offsets[expert] = first;
}

/// One unit per expert and part: assigns rows to its choices in that part.
#[cube(launch, address_type = "dynamic")]
fn give_rows(
    chosen: &Tensor<i32>,
    before: &Tensor<i32>,
    offsets: &Tensor<i32>,
    row_of_choice: &mut Tensor<i32>,
    choice_of_row: &mut Tensor<i32>,
    tokens: usize,
    experts: usize,
    parts: usize,
    capacity: i32,
    #[comptime] k: usize,
    #[comptime] part: usize,
) {
    let index = ABSOLUTE_POS;
    if index >= parts * experts {
        terminate!();
    }
    let expert = index % experts;
    let first = index / experts * part;
    let mut place = before[index];
    for choice in first..min(first + part, tokens * k) {
        if expert_of(chosen, choice, tokens, k) == i32::cast_from(expert) {
            if place < capacity {
                let row = offsets[expert] + place;
                row_of_choice[choice] = row;
                choice_of_row[usize::cast_from(row)] = i32::cast_from(choice);
            }
            place += 1i32;
        }
    }
}

/// The first rows, the row of each choice, and the choice of each row, for choices `[t, k]`.
pub(super) fn forward(chosen: CubeTensor, experts: usize, capacity: usize) -> (CubeTensor, CubeTensor, CubeTensor) {
    let [tokens, k] = chosen.shape().dims();
    let choices = tokens * k;
    let (parts, capacity) = (choices.div_ceil(PART), capacity.min(choices) as i32);
    let counts = empty(&chosen, [parts, experts], INT);
    launch!(
        count_in_parts, parts * experts, on chosen, over [chosen, counts],
        [chosen, counts],
        [tokens, experts, parts, k, PART]
    );
    let rows = empty(&chosen, [experts], INT);
    launch!(
        count_before_parts, experts + 1, on chosen, over [chosen, counts],
        [counts, rows],
        [experts, parts, capacity]
    );
    let offsets = empty(&chosen, [experts + 1], INT);
    launch!(
        first_rows, experts + 1, on chosen, over [chosen, counts],
        [rows, offsets],
        [experts]
    );
    let (row_of_choice, choice_of_row) = (filled(&chosen, [choices], choices), filled(&chosen, [choices], choices));
    launch!(
        give_rows, parts * experts, on chosen, over [chosen, counts],
        [chosen, counts, offsets, row_of_choice, choice_of_row],
        [tokens, experts, parts, capacity, k, PART]
    );
    (offsets, row_of_choice, choice_of_row)
}
