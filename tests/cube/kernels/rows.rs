//! Moves tokens to the rows of their experts, and back.

use super::{assert_agree, assert_finite_differences, difference, differentiate, integers, ints, noise, types};
use crate::{devices, devices_in_f64, turn};
use burn::tensor::{DType, Device, Int, Tensor};
use burn_pipeline_moe::ops::PackedRows;

/// The tokens' choices, the number of experts and the capacity of each.
struct Case {
    name: &'static str,
    chosen: Vec<i64>,
    tokens: usize,
    k: usize,
    experts: usize,
    capacity: usize,
}

/// Odd sizes, more choices than one unit counts, experts without tokens, and one expert with all tokens.
fn cases() -> Vec<Case> {
    let drawn = |tokens: usize, k: usize, experts: usize, capacity: usize, name| {
        let of_token = |draw: f64| {
            let first = ((draw + 1.0) * 0.5 * experts as f64) as usize;
            (0..k).map(move |choice| ((first + choice) % experts) as i64)
        };
        let chosen = noise(21, tokens).into_iter().flat_map(of_token).collect();
        Case { name, chosen, tokens, k, experts, capacity }
    };
    vec![
        drawn(1, 1, 1, 1, "one token"),
        drawn(7, 2, 5, 7, "dropless"),
        drawn(131, 3, 7, 131, "more choices than a unit counts"),
        drawn(131, 2, 3, 40, "full experts"),
        drawn(7, 2, 5, 0, "no capacity at all"),
        drawn(7, 2, 5, 1000, "more capacity than choices"),
        drawn(7, 2, 5, usize::MAX, "unlimited capacity"),
        drawn(9, 4, 4, 9, "every expert chosen by all"),
        Case { name: "one expert gets all", chosen: vec![2; 70], tokens: 70, k: 1, experts: 4, capacity: 70 },
        Case {
            name: "one expert gets all and is full",
            chosen: vec![2; 70],
            tokens: 70,
            k: 1,
            experts: 4,
            capacity: 9,
        },
    ]
}

/// Offsets, rows of choices and choices of rows, from a loop on the host.
fn placed(case: &Case) -> [Vec<i64>; 3] {
    let choices = case.tokens * case.k;
    let mut queues = vec![Vec::new(); case.experts];
    for choice in 0..choices {
        let (token, nth) = (choice % case.tokens, choice / case.tokens);
        let queue: &mut Vec<usize> = &mut queues[case.chosen[token * case.k + nth] as usize];
        if queue.len() < case.capacity {
            queue.push(choice);
        }
    }
    let (mut offsets, mut row_of, mut choice_of) =
        (vec![0], vec![choices as i64; choices], vec![choices as i64; choices]);
    let mut row = 0;
    for queue in queues {
        for choice in queue {
            (row_of[choice], choice_of[row]) = (row as i64, choice as i64);
            row += 1;
        }
        offsets.push(row as i64);
    }
    [offsets, row_of, choice_of]
}

fn packed(case: &Case, device: &Device) -> PackedRows {
    let load: Vec<i64> =
        (0..case.experts as i64).map(|e| case.chosen.iter().filter(|&&c| c == e).count() as i64).collect();
    let chosen: Tensor<2, Int> = ints(&case.chosen, [case.tokens, case.k], device);
    PackedRows::new(chosen, ints(&load, [case.experts], device), case.capacity)
}

fn with_zero_row(x: Tensor<2>) -> Tensor<2> {
    let [_, d] = x.dims();
    let zero = Tensor::zeros([1, d], &x.device());
    Tensor::cat(vec![x, zero], 0)
}

/// Rows by index. The index of a dropped choice reads a zero row.
fn permuted(case: &Case, x: Tensor<2>) -> Tensor<2> {
    let [_, _, choice_of] = placed(case);
    let none = (case.tokens * case.k) as i64;
    let token = |&choice: &i64| if choice == none { case.tokens as i64 } else { choice % case.tokens as i64 };
    let tokens: Vec<i64> = choice_of.iter().map(token).collect();
    let device = x.device();
    with_zero_row(x).select(0, ints(&tokens, [tokens.len()], &device))
}

fn unpermuted(case: &Case, rows: Tensor<2>, gates: Tensor<2>) -> Tensor<2> {
    let ([_, row_of, _], [_, d], device) = (placed(case), rows.dims(), rows.device());
    let of_choice = with_zero_row(rows).select(0, ints(&row_of, [row_of.len()], &device));
    let gates = gates.swap_dims(0, 1).reshape([case.k, case.tokens, 1]);
    (of_choice.reshape([case.k, case.tokens, d]) * gates).sum_dim(0).reshape([case.tokens, d])
}

#[test]
fn places_are_those_of_a_loop_on_the_host() {
    let _turn = turn();
    for device in devices().into_iter().chain([Device::flex()]) {
        for case in cases() {
            let got = packed(&case, &device);
            let got = [got.offsets, got.row_of_choice, got.choice_of_row].map(integers);
            assert_eq!(got, placed(&case), "{} on {device:?}", case.name);
        }
    }
}

#[test]
fn permuting_equals_the_composed_form() {
    let _turn = turn();
    for device in devices() {
        for (case, d) in cases().into_iter().flat_map(|case| [(case, 5)]) {
            for precision in types(&device) {
                let rows = packed(&case, &device);
                assert_agree(
                    case.name,
                    &[noise(31, case.tokens * d)],
                    &device,
                    precision,
                    |x| rows.permute(x[0].clone().reshape([case.tokens, d])),
                    |x| permuted(&case, x[0].clone().reshape([case.tokens, d])),
                );
            }
        }
    }
}

#[test]
fn unpermuting_equals_the_composed_form() {
    let _turn = turn();
    for device in devices_in_f64() {
        for case in cases() {
            // A width that vectors do not divide, one that they do, and one of more vectors than a lane takes.
            for d in [7, 16, 1040] {
                let (shape, choices) = ([case.tokens, case.k], case.tokens * case.k);
                if d > 16 && choices > 100 {
                    continue;
                }
                for precision in types(&device) {
                    let rows = packed(&case, &device);
                    assert_agree(
                        &format!("{}, width {d}", case.name),
                        &[noise(32, choices * d), noise(33, choices)],
                        &device,
                        precision,
                        |x| rows.unpermute(x[0].clone().reshape([choices, d]), x[1].clone().reshape(shape)),
                        |x| unpermuted(&case, x[0].clone().reshape([choices, d]), x[1].clone().reshape(shape)),
                    );
                }
            }
        }
    }
}

#[test]
fn gradients_are_those_of_the_values() {
    let _turn = turn();
    for device in devices_in_f64() {
        for case in cases().into_iter().filter(|case| case.name.contains("full")) {
            let (d, choices) = (3, case.tokens * case.k);
            let rows = packed(&case, &device);
            let there = |x: Vec<Tensor<1>>| rows.permute(x[0].clone().reshape([case.tokens, d]));
            assert_finite_differences(case.name, &[noise(34, case.tokens * d)], &device, there);
            let back = |x: Vec<Tensor<1>>| {
                rows.unpermute(x[0].clone().reshape([choices, d]), x[1].clone().reshape([case.tokens, case.k]))
            };
            assert_finite_differences(case.name, &[noise(35, choices * d), noise(36, choices)], &device, back);
        }
    }
}

#[test]
fn there_and_back_with_gates_of_one_half_is_the_identity_and_a_full_expert_shows() {
    let _turn = turn();
    for device in devices() {
        let [mut enough, mut full] =
            ["dropless", "dropless"].map(|name| cases().into_iter().find(|case| case.name == name).unwrap());
        enough.capacity = 7;
        full.capacity = 1;
        let x = noise(37, 7 * 4);
        let there_and_back = |case: &Case| {
            let rows = packed(case, &device);
            let got = differentiate(std::slice::from_ref(&x), &device, DType::F32, |x| {
                let gates = Tensor::full([7, 2], 0.5, &device.clone().autodiff());
                rows.unpermute(rows.permute(x[0].clone().reshape([7, 4])), gates)
            });
            difference(&got.output, &x)
        };
        assert!(there_and_back(&enough) < 1e-6);
        assert!(there_and_back(&full) > 0.1, "the comparison does not notice dropped choices");
    }
}
