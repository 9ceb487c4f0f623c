//! Fused routing: scores, top-k experts, gates, and load-balancing statistics.

use super::{
    assert_agree, assert_finite_differences, difference, differentiate, integers, noise, rounded, tensor, types,
};
use crate::{devices, devices_in_f64, turn};
use burn::tensor::activation::{sigmoid, softmax};
use burn::tensor::{DType, Device, Int, Tensor};
use burn_pipeline_moe::ops::{RouteOptions, Routed, route};

/// Tokens, experts, choices.
const SIZES: [[usize; 3]; 4] = [[1, 1, 1], [7, 5, 2], [67, 3, 3], [130, 9, 4]];

fn options(top_k: usize) -> impl Iterator<Item = RouteOptions> {
    let all = [(false, true), (false, false), (true, true), (true, false)];
    all.into_iter().map(move |(sigmoid, normalize)| RouteOptions { top_k, sigmoid, normalize })
}

fn logits(tokens: usize, experts: usize) -> Vec<f64> {
    noise(11, tokens * experts).iter().map(|x| x * 3.0).collect()
}

fn bias(experts: usize) -> Vec<f64> {
    noise(12, experts).iter().map(|x| x * 0.3).collect()
}

/// Every differentiable result, in one row.
fn joined(routed: Routed) -> Tensor<1> {
    let [tokens, k] = routed.gates.dims();
    Tensor::cat(vec![routed.gates.reshape([tokens * k]), routed.mean_probabilities], 0)
}

/// The `k` best experts, sorted on the host: larger scores first, and the lower index among equal ones.
fn best(scores: &[f64], experts: usize, k: usize) -> Vec<i64> {
    let of_row = |row: &[f64]| {
        let mut order: Vec<usize> = (0..experts).collect();
        order.sort_by(|&a, &b| row[b].total_cmp(&row[a]).then(a.cmp(&b)));
        order.into_iter().take(k).map(|expert| expert as i64).collect::<Vec<_>>()
    };
    scores.chunks(experts).flat_map(of_row).collect()
}

/// The gates of Shazeer and of DeepSeek-V3 and Switch's mean probabilities, from Burn's operations.
fn composed(logits: Tensor<2>, bias: Option<Tensor<1>>, options: RouteOptions) -> Routed {
    let ([tokens, experts], device) = (logits.dims(), logits.device());
    let scores = if options.sigmoid { sigmoid(logits) } else { softmax(logits, 1) };
    let probabilities = scores.clone() / scores.clone().sum_dim(1);
    let compared =
        scores.clone().detach() + bias.map_or_else(|| Tensor::zeros([1, experts], &device), |bias| bias.unsqueeze());
    let chosen = best(&super::numbers(compared), experts, options.top_k);
    let load: Vec<i64> = (0..experts as i64).map(|e| chosen.iter().filter(|&&c| c == e).count() as i64).collect();
    let chosen: Tensor<2, Int> = super::ints(&chosen, [tokens, options.top_k], &device);
    let gates = scores.gather(1, chosen.clone());
    let gates = if options.normalize { gates.clone() / gates.sum_dim(1) } else { gates };
    let load = super::ints(&load, [experts], &device);
    Routed { gates, mean_probabilities: probabilities.mean_dim(0).reshape([experts]), experts: chosen, load }
}

/// Every combination of options with each type that the device computes in.
fn each(k: usize, device: &Device) -> impl Iterator<Item = (RouteOptions, (DType, f64))> {
    options(k).flat_map(move |options| types(device).map(move |precision| (options, precision)))
}

#[test]
fn gates_and_mean_probabilities_and_their_gradients_equal_the_composed_form() {
    let _turn = turn();
    for device in devices() {
        for [tokens, experts, k] in SIZES {
            for (options, precision) in each(k, &device) {
                let shift = rounded(&bias(experts), precision.0);
                let place = format!("routing {tokens} tokens among {experts} experts, {options:?}");
                let bias = |device: &Device, dtype| Some(tensor(&shift, [experts], device, dtype));
                assert_agree(
                    &place,
                    &[logits(tokens, experts)],
                    &device,
                    precision,
                    |x| joined(route(x[0].clone().reshape([tokens, experts]), bias(&device, precision.0), options)),
                    |x| {
                        let bias = bias(&Device::flex().autodiff(), DType::F32);
                        joined(composed(x[0].clone().reshape([tokens, experts]), bias, options))
                    },
                );
            }
        }
    }
}

#[test]
fn choices_and_load_equal_the_composed_form() {
    let _turn = turn();
    for device in devices() {
        for [tokens, experts, k] in SIZES {
            for (options, (dtype, _)) in each(k, &device) {
                let (x, bias) = (rounded(&logits(tokens, experts), dtype), rounded(&bias(experts), dtype));
                let run = |device: &Device, dtype| {
                    let bias = Some(tensor(&bias, [experts], device, dtype));
                    (tensor(&x, [tokens, experts], device, dtype), bias)
                };
                let (logits, shift) = run(&device, dtype);
                let got = route(logits, shift, options);
                let (logits, shift) = run(&Device::flex(), DType::F32);
                let expected = composed(logits, shift, options);
                let place = format!("{tokens} tokens, {experts} experts, {options:?}, {dtype:?}");
                assert_eq!(integers(got.experts), integers(expected.experts), "{place}");
                assert_eq!(integers(got.load), integers(expected.load), "{place}");
            }
        }
    }
}

#[test]
fn of_equal_scores_the_first_expert_is_chosen() {
    let _turn = turn();
    for device in devices() {
        let options = RouteOptions { top_k: 3, sigmoid: false, normalize: true };
        let logits = tensor(&[1.0, 2.0, 1.0, 2.0, 0.0, 0.0, 0.0, 0.0], [2, 4], &device, DType::F32);
        assert_eq!(integers(route(logits, None, options).experts), [1, 3, 0, 0, 1, 2]);
    }
}

#[test]
fn the_gradient_is_that_of_the_values() {
    let _turn = turn();
    for device in devices_in_f64() {
        for options in options(2) {
            let kernel = |x: Vec<Tensor<1>>| joined(route(x[0].clone().reshape([66, 5]), None, options));
            assert_finite_differences(&format!("{options:?}"), &[logits(66, 5)], &device, kernel);
        }
    }
}

#[test]
fn gates_alone_or_statistics_alone_have_another_gradient() {
    let _turn = turn();
    let options = RouteOptions { top_k: 2, sigmoid: false, normalize: true };
    for device in devices() {
        let inputs = [logits(7, 5)];
        let run = |forget_gates: bool, forget_means: bool| {
            let got = differentiate(&inputs, &device, DType::F32, |x| {
                let mut routed = route(x[0].clone().reshape([7, 5]), None, options);
                if forget_gates {
                    routed.gates = routed.gates.detach();
                }
                if forget_means {
                    routed.mean_probabilities = routed.mean_probabilities.detach();
                }
                joined(routed)
            });
            got.gradients[0].clone()
        };
        let all = run(false, false);
        assert!(difference(&run(true, false), &all) > 0.01, "the comparison does not notice a missing gate gradient");
        assert!(
            difference(&run(false, true), &all) > 0.01,
            "the comparison does not notice a missing gradient of the statistics"
        );
    }
}
