//! The injection on the device: it moves no number, so the operation is the same on all backends.

use super::{TYPES, apart, noise, numbers, rounded, tensor};
use crate::{devices, turn};
use burn::tensor::{DType, Device, Tensor};
use burn_pipeline_moe::ops::{inject, z_loss};

/// Gradients of logits and hidden states with a z-loss of the logits injected, or added to the main loss.
fn gradients(device: &Device, dtype: DType, scale: f64, injected: bool) -> [Vec<f64>; 2] {
    let device = device.clone().autodiff();
    let leaf = |seed| tensor(&rounded(&noise(seed, 7 * 3), dtype), [7, 3], &device, dtype).require_grad();
    let (hidden, logits) = (leaf(51), leaf(52));
    let auxiliary = z_loss(logits.clone());
    let scale = Tensor::<1>::from_floats([scale as f32], &device).cast(dtype);
    let gradients = match injected {
        true => inject(hidden.clone(), auxiliary, scale).square().sum().backward(),
        false => (hidden.clone().square().sum() + auxiliary * scale).backward(),
    };
    [hidden, logits].map(|leaf| numbers(leaf.grad(&gradients).unwrap()))
}

#[test]
fn an_injected_loss_counts_as_one_that_was_added() {
    let _turn = turn();
    for device in devices() {
        for (dtype, tolerance) in TYPES {
            let (got, expected) = (gradients(&device, dtype, 0.25, true), gradients(&device, dtype, 0.25, false));
            let half = gradients(&device, dtype, 0.125, false);
            assert!(apart(&got[0], &expected[0]) == 0.0, "the hidden states' own gradient passes unchanged");
            assert!(apart(&got[1], &expected[1]) <= tolerance);
            assert!(apart(&got[1], &half[1]) > 0.5, "half the scale was not seen");
        }
    }
}
