//! The `k` largest numbers of each row, without reading values back.

use burn::tensor::{Int, Tensor};

/// The indices of the `k` largest numbers of each row, largest first, `[rows, k]`; of equal numbers the first.
///
/// The `k` indices always differ: NaN and minus infinity count as the lowest finite number.
///
/// Each choice takes one maximum, then masks it out: `k` is small, and a captured stage can replay this, whereas a sort
/// may read back to the host.
///
/// # Panics
/// Panics if `k` is 0 or larger than the length of the rows.
pub fn top_k(scores: Tensor<2>, k: usize) -> Tensor<2, Int> {
    let [rows, columns] = scores.dims();
    assert!((1..=columns).contains(&k), "cannot choose {k} of {columns} numbers");
    let all = Tensor::<1, Int>::arange(0..columns as i64, &scores.device()).unsqueeze::<2>().expand([rows, columns]);
    // A chosen index gets minus infinity, below the lowest finite number, so it is never chosen twice.
    let least = scores.dtype().finfo().map_or(f64::from(f32::MIN), |numbers| numbers.min);
    // Not `is_nan` or `not_equal`, which are false for NaN in SPIR-V.
    let is_number = scores.clone().equal(scores.clone());
    let mut left = scores.mask_fill(is_number.bool_not(), least).clamp_min(least);
    let chosen = (0..k).map(|_| {
        let best = left.clone().argmax(1);
        let taken = all.clone().equal(best.clone().expand([rows, columns]));
        left = left.clone().mask_fill(taken, f32::NEG_INFINITY);
        best
    });
    let chosen: Vec<_> = chosen.collect();
    Tensor::cat(chosen, 1)
}
