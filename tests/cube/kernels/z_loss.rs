//! The fused z-loss.

use super::{assert_agree, assert_finite_differences, difference, differentiate, noise, types};
use crate::{devices, devices_in_f64, turn};
use burn::tensor::{DType, Device, Tensor};
use burn_pipeline_moe::ops::z_loss;

/// Large logits, whose maximum must be subtracted first.
fn logits(tokens: usize, experts: usize) -> Vec<f64> {
    noise(3, tokens * experts).iter().map(|x| x * 6.0 + 2.0).collect()
}

/// Equation 5 of ST-MoE, as written.
fn composed(logits: Tensor<2>) -> Tensor<1> {
    logits.exp().sum_dim(1).log().square().mean()
}

#[test]
fn value_and_gradient_equal_the_composed_form() {
    let _turn = turn();
    for device in devices() {
        for (tokens, experts) in [(1, 1), (7, 3), (64, 8), (131, 5)] {
            for precision in types(&device) {
                let shape = [tokens, experts];
                assert_agree(
                    &format!("z-loss of {shape:?}"),
                    &[logits(tokens, experts)],
                    &device,
                    precision,
                    |inputs| z_loss(inputs[0].clone().reshape(shape)),
                    |inputs| composed(inputs[0].clone().reshape(shape)),
                );
            }
        }
    }
}

#[test]
fn the_gradient_is_that_of_the_value() {
    let _turn = turn();
    for device in devices_in_f64() {
        let kernel = |inputs: Vec<Tensor<1>>| z_loss(inputs[0].clone().reshape([67, 5]));
        assert_finite_differences("z-loss", &[logits(67, 5)], &device, kernel);
    }
}

#[test]
fn large_logits_do_not_overflow() {
    let _turn = turn();
    for device in devices() {
        let got = differentiate(&[vec![200.0, 100.0, -300.0, 90.0]], &device, DType::F32, |inputs| {
            z_loss(inputs[0].clone().reshape([2, 2]))
        });
        assert!((got.output[0] / ((200.0f64.powi(2) + 90.0f64.powi(2)) / 2.0) - 1.0).abs() < 1e-6, "{:?}", got.output);
        assert!(got.gradients[0].iter().all(|g| g.is_finite()));
    }
}

#[test]
fn a_sum_instead_of_the_mean_would_be_seen() {
    let _turn = turn();
    for device in devices() {
        let inputs = [logits(7, 3)];
        let got = differentiate(&inputs, &device, DType::F32, |x| z_loss(x[0].clone().reshape([7, 3])));
        let wrong =
            differentiate(&inputs, &Device::flex(), DType::F32, |x| composed(x[0].clone().reshape([7, 3])) * 7.0);
        assert!(
            difference(&got.output, &wrong.output) > 0.5 && difference(&got.gradients[0], &wrong.gradients[0]) > 0.5
        );
    }
}
