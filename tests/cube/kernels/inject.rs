//! Gradient injection: gradients of auxiliary losses from one launch, compared with adding the same losses to the
//! main loss.

use super::{assert_finite_differences, difference, noise, numbers, rounded, tensor, types};
use crate::{devices, devices_in_f64, turn};
use burn::tensor::{DType, Device, Tensor};
use burn_pipeline_moe::ops::{BUCKETS, InjectedWeights, inject, inject_weighted, z_loss};

/// The number of losses in each bucket. One bucket is empty.
const COUNTS: [[usize; BUCKETS]; 4] = [[1, 0, 0], [3, 2, 1], [0, 5, 0], [2, 0, 7]];

const WEIGHTS: InjectedWeights = [0.01, 0.7, -1.3];

/// Losses of odd-sized pieces of `x`, bucket by bucket. Each loss is a different function of its piece.
fn losses(x: &Tensor<1>, counts: [usize; BUCKETS]) -> [Vec<Tensor<1>>; BUCKETS] {
    let mut at = 0;
    counts.map(|count| {
        let loss = |_| {
            at += 1;
            x.clone().narrow(0, at, 3).mul_scalar(at as f64).square().sum()
        };
        (0..count).map(loss).collect()
    })
}

fn main_loss(hidden: Tensor<1>) -> Tensor<1> {
    hidden.square().sum()
}

/// Gradients of hidden states and of the losses' inputs, with the losses injected or added with the same weights.
fn gradients(
    device: &Device,
    (dtype, scale_dtype): (DType, DType),
    counts: [usize; BUCKETS],
    scale: f64,
    injected: bool,
) -> [Vec<f64>; 2] {
    let device = device.clone().autodiff();
    let leaf = |seed, count| tensor(&rounded(&noise(seed, count), dtype), [count], &device, dtype).require_grad();
    let (hidden, x) = (leaf(51, 21), leaf(52, 17));
    let losses = losses(&x, counts);
    let gradients = match injected {
        true => {
            let scale = tensor(&[scale], [1], &device, scale_dtype);
            main_loss(inject_weighted(hidden.clone(), losses, WEIGHTS, scale)).backward()
        }
        false => {
            let weighed = losses.into_iter().zip(WEIGHTS);
            let add = |sum: Tensor<1>, (losses, weight): (Vec<Tensor<1>>, f64)| {
                losses.into_iter().fold(sum, |sum, loss| sum + loss.mul_scalar(scale * weight))
            };
            weighed.fold(main_loss(hidden.clone()), add).backward()
        }
    };
    [hidden, x].map(|leaf| numbers(leaf.grad(&gradients).unwrap()))
}

#[test]
fn injected_losses_count_as_ones_that_were_added() {
    let _turn = turn();
    for device in devices() {
        for counts in COUNTS {
            for (dtype, tolerance) in types(&device) {
                let reference = gradients(&Device::flex(), (dtype, dtype), counts, 0.3, false);
                for scale_dtype in [dtype, DType::F32] {
                    let got = gradients(&device, (dtype, scale_dtype), counts, 0.3, true);
                    let place = format!("{counts:?} in {dtype:?}, scale in {scale_dtype:?}");
                    assert!(
                        difference(&got[0], &reference[0]) <= tolerance,
                        "{place}: the gradient of the hidden states"
                    );
                    // The composed form rounds bf16 matmuls several times.
                    let distance = difference(&got[1], &reference[1]);
                    assert!(distance <= 3.0 * tolerance, "{place}: {distance:e} off");
                }
            }
        }
    }
}

#[test]
fn half_the_scale_or_the_weights_of_other_buckets_would_be_seen() {
    let _turn = turn();
    for device in devices() {
        let types = (DType::F32, DType::F32);
        let got = gradients(&device, types, [3, 2, 1], 0.3, true);
        let half = gradients(&device, types, [3, 2, 1], 0.15, false);
        let shifted = gradients(&device, types, [1, 3, 2], 0.3, false);
        assert!(difference(&got[1], &half[1]) > 0.1 && difference(&got[1], &shifted[1]) > 0.1);
    }
}

#[test]
fn gradients_are_those_of_finite_differences() {
    let _turn = turn();
    for device in devices_in_f64() {
        // Injection changes no output, so finite differences use the sum that it stands for.
        let counts = [3, 2, 1];
        let inputs = [noise(53, 17)];
        let sum = |x: Vec<Tensor<1>>| {
            let all = losses(&x[0], counts).into_iter().zip(WEIGHTS);
            let weigh = |(losses, weight): (Vec<Tensor<1>>, f64)| losses.into_iter().map(move |l| l.mul_scalar(weight));
            all.flat_map(weigh).reduce(|a, b| a + b).unwrap()
        };
        assert_finite_differences("the sum of the losses", &inputs, &device, sum);
        let expected = super::differentiate(&inputs, &device, DType::F64, sum);
        let weight = noise(99, 1)[0];
        let tracked = device.clone().autodiff();
        let x = tensor(&inputs[0], [17], &tracked, DType::F64).require_grad();
        let scale = tensor(&[weight], [1], &tracked, DType::F64);
        let hidden = tensor(&[1.0; 5], [5], &tracked, DType::F64);
        let gradients = inject_weighted(hidden, losses(&x, counts), WEIGHTS, scale).sum().backward();
        assert!(
            difference(&numbers(x.grad(&gradients).unwrap()), &expected.gradients[0]) < 1e-12,
            "in f64 on {device:?}"
        );
    }
}

#[test]
fn the_scale_is_read_in_backward_and_stays_on_the_device() {
    let _turn = turn();
    for device in devices() {
        let tracked = device.clone().autodiff();
        // A computed scale, and a z-loss in its own kernel.
        let scale = Tensor::<1>::from_floats([3.0, 1.0], &tracked).sum().mul_scalar(0.125);
        let logits = tensor(&noise(54, 21), [7, 3], &tracked, DType::F32).require_grad();
        let hidden = tensor(&noise(55, 4), [4], &tracked, DType::F32);
        let injected = inject(hidden, z_loss(logits.clone()), scale).sum().backward();
        let added = z_loss(logits.clone()).mul_scalar(0.5).backward();
        let [got, expected] = [injected, added].map(|gradients| numbers(logits.grad(&gradients).unwrap()));
        assert!(difference(&got, &expected) < 1e-6);
    }
}
