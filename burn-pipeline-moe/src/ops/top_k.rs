//! The `k` largest of each row, without reading values back.

use burn::tensor::{Int, Tensor};

/// The places of the `k` largest of each row, largest first, `[rows, k]`; of equal ones the first.
///
/// They are always `k` different places: what is no number, or minus infinity, counts as the least number there is.
///
/// One maximum a choice, each masked out for the next: `k` is small, and a captured stage can replay this (a sort
/// may go through the host).
///
/// # Panics
/// If `k` is larger than the rows are long.
pub fn top_k(scores: Tensor<2>, k: usize) -> Tensor<2, Int> {
    let [rows, columns] = scores.dims();
    assert!(k <= columns, "{k} of {columns} cannot be chosen");
    let all = Tensor::<1, Int>::arange(0..columns as i64, &scores.device()).unsqueeze::<2>().expand([rows, columns]);
    // A place that was taken is below the least number, so that no other can be equal to it.
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
