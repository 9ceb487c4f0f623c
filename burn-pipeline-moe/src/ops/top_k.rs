//! The `k` largest of each row, without reading values back.

use burn::tensor::{Int, Tensor};

/// The indices of the `k` largest numbers of each row, largest first, `[rows, k]`; of equal numbers the first.
///
/// They are always `k` different indices: NaN and minus infinity count as the least finite number.
///
/// Each choice is one maximum, which is masked out for the next: `k` is small, and a captured stage can replay this (a sort
/// may read back to the host).
///
/// # Panics
/// If `k` is larger than the length of the rows.
pub fn top_k(scores: Tensor<2>, k: usize) -> Tensor<2, Int> {
    let [rows, columns] = scores.dims();
    assert!(k <= columns, "{k} of {columns} cannot be chosen");
    let all = Tensor::<1, Int>::arange(0..columns as i64, &scores.device()).unsqueeze::<2>().expand([rows, columns]);
    // A chosen index gets minus infinity, below the least number, so it is never chosen twice.
    let least = scores.dtype().finfo().map_or(f64::from(f32::MIN), |numbers| numbers.min);
    let mut left = scores.clone().mask_fill(scores.is_nan(), least).clamp_min(least);
    let chosen = (0..k).map(|_| {
        let best = left.clone().argmax(1);
        let taken = all.clone().equal(best.clone().expand([rows, columns]));
        left = left.clone().mask_fill(taken, f32::NEG_INFINITY);
        best
    });
    let chosen: Vec<_> = chosen.collect();
    Tensor::cat(chosen, 1)
}
