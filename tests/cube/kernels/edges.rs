//! Edge cases of the kernels: no tokens, NaN and infinite numbers, ties, views, and more units than one dimension
//! of a grid holds.

use super::{difference, differentiate, integers, ints, noise, numbers, tensor};
use crate::{devices, turn};
use burn::module::{Param, ParamId};
use burn::tensor::{DType, Device, Int, Tensor};
use burn_pipeline_moe::layers::MixtureOfExpertsConfig;
use burn_pipeline_moe::ops::{PackedRows, RouteOptions, Routed, grouped_matmul, route, z_loss};

const OPTIONS: [RouteOptions; 2] = [
    RouteOptions { top_k: 3, sigmoid: false, normalize: true },
    RouteOptions { top_k: 3, sigmoid: true, normalize: false },
];

/// Asserts that the numbers agree. NaN equals NaN.
fn assert_same(got: &[f64], expected: &[f64], place: &str) {
    assert_eq!(got.len(), expected.len(), "{place}");
    for (index, (a, b)) in got.iter().zip(expected).enumerate() {
        let same = a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= 1e-6 * b.abs().max(1.0);
        assert!(same, "{place}: number {index} is {a}, expected {b}");
    }
}

fn rows_of(values: &[[f64; 4]], device: &Device) -> Tensor<2> {
    tensor(&values.concat(), [values.len(), 4], device, DType::F32)
}

#[test]
fn logits_that_are_no_numbers_or_infinite_are_routed_as_in_the_composed_form() {
    let _turn = turn();
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    let logits = [
        [0.5, nan, 1.0, -1.0],
        [nan; 4],
        [-inf, 2.0, 1.0, 0.0],
        [-inf, -inf, -inf, 0.0],
        [-inf; 4],
        [1.0, inf, 0.0, 2.0],
        [inf, inf, 1.0, inf],
        [1.0, 2.0, 3.0, 4.0],
    ];
    let run = |device: &Device, options, bias: Option<[f64; 4]>| {
        let bias = bias.map(|bias| tensor(&bias, [4], device, DType::F32));
        let Routed { gates, mean_probabilities, experts, load } = route(rows_of(&logits, device), bias, options);
        (integers(experts), integers(load), numbers(gates), numbers(mean_probabilities))
    };
    for device in devices() {
        for (options, bias) in
            OPTIONS.into_iter().flat_map(|o| [None, Some([0.0, -inf, 0.1, -inf])].map(|bias| (o, bias)))
        {
            let (got, expected) = (run(&device, options, bias), run(&Device::flex(), options, bias));
            let place = format!("{options:?}, bias {bias:?}");
            assert_eq!((&got.0, &got.1), (&expected.0, &expected.1), "{place}: choices and load");
            assert_same(&got.2, &expected.2, &place);
            assert_same(&got.3, &expected.3, &place);
            for (token, chosen) in got.0.chunks(3).enumerate() {
                let mut different = chosen.to_vec();
                different.sort_unstable();
                different.dedup();
                assert_eq!(different.len(), 3, "{place}: token {token} goes to {chosen:?}");
            }
        }
    }
}

#[test]
fn a_logit_that_is_no_number_spoils_the_gradient_of_its_own_token_only() {
    let _turn = turn();
    let mut logits = noise(71, 5 * 4);
    logits[6] = f64::NAN;
    for device in devices() {
        let device = device.autodiff();
        let leaf = tensor(&logits, [5, 4], &device, DType::F32).require_grad();
        let routed = route(leaf.clone(), None, OPTIONS[0]);
        let gradients = routed.gates.square().sum().backward();
        let of_tokens = numbers(leaf.grad(&gradients).unwrap());
        for (token, gradient) in of_tokens.chunks(4).enumerate() {
            assert_eq!(gradient.iter().all(|g| g.is_finite()), token != 1, "token {token}: {gradient:?}");
        }
    }
}

#[test]
fn infinite_logits_that_lose_have_no_part_in_the_z_loss() {
    let _turn = turn();
    let inf = f64::INFINITY;
    for device in devices() {
        let run = |values: Vec<f64>, experts: usize| {
            differentiate(&[values], &device, DType::F32, |x| z_loss(x[0].clone().reshape([2, experts])))
        };
        let without = run(vec![1.0, 2.0, 0.5, -1.0], 2);
        let with = run(vec![1.0, 2.0, -inf, 0.5, -1.0, -inf], 3);
        assert!(difference(&with.output, &without.output) < 1e-6);
        let [a, b, none, c, d, neither] = with.gradients[0][..] else { panic!("six numbers") };
        assert_eq!((none, neither), (0.0, 0.0));
        assert!(difference(&[a, b, c, d], &without.gradients[0]) < 1e-6);
    }
}

#[test]
fn ties_go_to_the_first_experts_on_all_devices_down_to_the_last_choice() {
    let _turn = turn();
    for device in devices().into_iter().chain([Device::flex()]) {
        for (experts, k) in [(1, 1), (5, 5), (7, 3)] {
            let options = RouteOptions { top_k: k, sigmoid: true, normalize: true };
            // Rows of one number, and rows of two numbers whose larger one comes every second time.
            let mut values = vec![0.25; 3 * experts];
            values.extend((0..experts).map(|e| if e % 2 == 1 { 1.0 } else { -1.0 }));
            let routed = route(tensor(&values, [4, experts], &device, DType::F32), None, options);
            let mut expected: Vec<i64> = (0..3).flat_map(|_| 0..k as i64).collect();
            let odd_first =
                (0..experts as i64).filter(|e| e % 2 == 1).chain((0..experts as i64).filter(|e| e % 2 == 0));
            expected.extend(odd_first.take(k));
            assert_eq!(integers(routed.experts), expected, "{k} of {experts} on {device:?}");
        }
    }
}

#[test]
fn without_tokens_there_is_nothing_and_nothing_fails() {
    let _turn = turn();
    for device in devices().into_iter().chain([Device::flex()]) {
        let device = device.autodiff();
        let routed = route(Tensor::zeros([0, 4], &device), None, OPTIONS[0]);
        assert_eq!((routed.gates.dims(), routed.experts.dims()), ([0, 3], [0, 3]));
        assert_eq!(numbers(routed.mean_probabilities), [0.0; 4]);
        assert_eq!(integers(routed.load.clone()), [0; 4]);
        assert_eq!(numbers(z_loss(Tensor::zeros([0, 4], &device))), [0.0]);
        let rows = PackedRows::new(routed.experts, routed.load, 2);
        assert_eq!(integers(rows.offsets.clone()), [0; 5]);
        let packed = rows.permute(Tensor::zeros([0, 6], &device));
        let weight = Param::initialized(ParamId::new(), Tensor::ones([4, 6, 5], &device));
        let product = grouped_matmul(packed, &weight, rows.offsets.clone());
        assert_eq!(product.dims(), [0, 5]);
        assert_eq!(rows.unpermute(product, routed.gates).dims(), [0, 5]);
    }
}

/// The same numbers as a view that is not contiguous: columns of a wider tensor, transposed.
fn viewed(values: &[f64], [rows, columns]: [usize; 2], device: &Device) -> Tensor<2> {
    let plain = tensor::<2>(values, [rows, columns], device, DType::F32);
    let border = Tensor::full([1, rows], 77.0, device);
    let wide = Tensor::cat(vec![border.clone(), plain.swap_dims(0, 1), border], 0);
    let view = Tensor::cat(vec![wide.clone(), wide], 1).narrow(0, 1, columns).narrow(1, 0, rows).swap_dims(0, 1);
    assert_eq!(view.dims(), [rows, columns]);
    view
}

#[test]
fn views_give_what_their_copies_give() {
    let _turn = turn();
    for device in devices() {
        let (tokens, experts, d, h) = (7, 5, 8, 6);
        let options = RouteOptions { top_k: 2, sigmoid: false, normalize: true };
        let run = |view: bool| {
            let matrix = |seed, shape: [usize; 2]| {
                let values = noise(seed, shape.iter().product());
                if view { viewed(&values, shape, &device) } else { tensor(&values, shape, &device, DType::F32) }
            };
            let logits = matrix(72, [tokens, experts]);
            let routed = route(logits.clone(), None, options);
            let rows = PackedRows::new(routed.experts.clone(), routed.load.clone(), tokens);
            let packed = rows.permute(matrix(73, [tokens, d]));
            let weight = tensor::<3>(&noise(74, experts * d * h), [experts, h, d], &device, DType::F32);
            let weight = if view { weight.swap_dims(1, 2) } else { (weight * 1.0).swap_dims(1, 2).add_scalar(0.0) };
            let weight = Param::initialized(ParamId::new(), weight);
            let product = grouped_matmul(packed, &weight, rows.offsets.clone());
            let back = rows.unpermute(product, matrix(75, [tokens, 2]));
            let chosen: Vec<f64> = integers(routed.experts).into_iter().map(|e| e as f64).collect();
            [numbers(z_loss(logits)), numbers(routed.gates), chosen, numbers(back)]
        };
        assert_eq!(run(true), run(false), "on {device:?}");
    }
}

#[test]
fn choices_given_as_a_view_have_the_rows_of_their_copy() {
    let _turn = turn();
    for device in devices() {
        let (tokens, k, experts) = (9, 2, 3);
        let chosen: Vec<i64> = (0..tokens * k).map(|i| (i * i % experts) as i64).collect();
        let load: Vec<i64> = (0..experts as i64).map(|e| chosen.iter().filter(|&&c| c == e).count() as i64).collect();
        let plain: Tensor<2, Int> = ints(&chosen, [tokens, k], &device);
        let turned: Vec<i64> =
            (0..k).flat_map(|j| (0..tokens).map(move |t| (t, j))).map(|(t, j)| chosen[t * k + j]).collect();
        let view = ints::<2>(&turned, [k, tokens], &device).swap_dims(0, 1);
        let rows = |chosen| {
            let rows = PackedRows::new(chosen, ints(&load, [experts], &device), 4);
            [rows.offsets, rows.row_of_choice, rows.choice_of_row].map(integers)
        };
        assert_eq!(rows(view), rows(plain));
    }
}

#[test]
fn more_workgroups_than_one_dimension_of_a_grid_holds_are_all_run() {
    let _turn = turn();
    for device in devices() {
        // 65,535 workgroups of a processor's few units hold far fewer tokens than this.
        let tokens = 600_011;
        let values: Vec<f64> = noise(76, tokens).iter().map(|x| x * 4.0).collect();
        let got = differentiate(std::slice::from_ref(&values), &device, DType::F32, |x| {
            z_loss(x[0].clone().reshape([tokens, 1]))
        });
        // With one expert, the log-sum-exp is the logit itself.
        let mean = values.iter().map(|x| x * x).sum::<f64>() / tokens as f64;
        assert!((got.output[0] / mean - 1.0).abs() < 1e-3, "{} is not {mean}", got.output[0]);
        let weight = noise(99, 1)[0];
        let expected: Vec<f64> = values.iter().map(|x| weight * 2.0 * x / tokens as f64).collect();
        assert!(difference(&got.gradients[0], &expected) < 1e-5);
    }
}

#[test]
fn one_expert_takes_every_token_and_its_gate_is_one() {
    let _turn = turn();
    for device in devices() {
        let config = MixtureOfExpertsConfig::new(4, 3, 1).with_top_k(1);
        let layer = burn_pipeline::stage::init_seeded(77, &device.clone().autodiff(), |device| config.init(device));
        let x = tensor(&noise(78, 2 * 5 * 4), [2, 5, 4], &device.clone().autodiff(), DType::F32);
        let (y, left) = layer.forward(x);
        assert!(numbers(y).iter().all(|y| y.is_finite()));
        assert_eq!(integers(left.load.unwrap()), [10]);
        assert_eq!(integers(left.dropped.unwrap()), [0]);
        assert!((numbers(left.load_balance.unwrap())[0] - 1.0).abs() < 1e-6);
    }
}
