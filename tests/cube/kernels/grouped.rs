//! Grouped matmuls over uneven groups of rows.

use super::{assert_agree, assert_finite_differences, difference, differentiate, ints, noise, numbers, tensor, types};
use crate::{devices, devices_in_f64, turn};
use burn::backend::{AutodiffBackend, Dispatch};
use burn::module::Param;
use burn::tensor::{DType, Tensor};
use burn_pipeline::ops::Deferral;
use burn_pipeline_moe::ops::grouped_matmul;

/// A name, the rows of each expert, trailing rows without an expert, input width, output width.
const CASES: [(&str, &[usize], usize, usize, usize); 5] = [
    ("one row", &[1], 0, 1, 1),
    ("uneven", &[5, 1, 13, 2], 0, 3, 5),
    ("experts without rows, rows without expert", &[0, 5, 0, 0, 6, 0], 7, 17, 7),
    ("all to one", &[0, 0, 33], 0, 8, 16),
    ("none at all", &[0, 0], 6, 4, 3),
];

fn offsets(counts: &[usize]) -> Vec<i64> {
    let mut offsets = vec![0];
    counts.iter().for_each(|&count| offsets.push(offsets[offsets.len() - 1] + count as i64));
    offsets
}

fn parameter(weight: Tensor<3>) -> Param<Tensor<3>> {
    Param::initialized(burn::module::ParamId::new(), weight)
}

/// Multiplies each expert's rows by its matrix, one expert after the other.
fn composed(rows: Tensor<2>, weight: Tensor<3>, counts: &[usize]) -> Tensor<2> {
    let ([n, _], [_, d, h]) = (rows.dims(), weight.dims());
    let offsets = offsets(counts);
    // Every row and matrix takes part, so that each has a gradient, if only zero.
    let mut y = (rows.clone().sum() * 0.0 + weight.clone().sum() * 0.0).reshape([1, 1]).expand([n, h]);
    for (expert, &count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        let (start, matrix) = (offsets[expert] as usize, weight.clone().narrow(0, expert, 1).reshape([d, h]));
        let part = rows.clone().narrow(0, start, count).matmul(matrix);
        y = y.slice_assign([start..start + count, 0..h], part);
    }
    y
}

#[test]
fn products_and_gradients_equal_the_composed_form() {
    let _turn = turn();
    for device in devices() {
        for (name, counts, rest, d, h) in CASES {
            let (n, experts) = (counts.iter().sum::<usize>() + rest, counts.len());
            for precision in types(&device) {
                let bounds = ints(&offsets(counts), [experts + 1], &device);
                assert_agree(
                    name,
                    &[noise(41, n * d), noise(42, experts * d * h)],
                    &device,
                    precision,
                    |x| {
                        let weight = parameter(x[1].clone().reshape([experts, d, h]));
                        grouped_matmul(x[0].clone().reshape([n, d]), &weight, bounds)
                    },
                    |x| composed(x[0].clone().reshape([n, d]), x[1].clone().reshape([experts, d, h]), counts),
                );
            }
        }
    }
}

#[test]
fn gradients_are_those_of_the_values() {
    let _turn = turn();
    for device in devices_in_f64() {
        let (name, counts, rest, d, h) = CASES[2];
        let (n, experts) = (counts.iter().sum::<usize>() + rest, counts.len());
        let kernel = |x: Vec<Tensor<1>>| {
            let bounds = ints(&offsets(counts), [experts + 1], &device);
            let weight = parameter(x[1].clone().reshape([experts, d, h]));
            grouped_matmul(x[0].clone().reshape([n, d]), &weight, bounds)
        };
        assert_finite_differences(name, &[noise(43, n * d), noise(44, experts * d * h)], &device, kernel);
    }
}

#[test]
fn rows_given_to_the_next_expert_would_be_seen() {
    let _turn = turn();
    for device in devices() {
        let inputs = [noise(45, 21 * 3), noise(46, 4 * 3 * 5)];
        let run = |counts: [usize; 4]| {
            differentiate(&inputs, &device, DType::F32, |x| {
                let weight = parameter(x[1].clone().reshape([4, 3, 5]));
                grouped_matmul(x[0].clone().reshape([21, 3]), &weight, ints(&offsets(&counts), [5], &device))
            })
        };
        let (right, wrong) = (run([5, 1, 13, 2]), run([5, 2, 12, 2]));
        assert!(difference(&wrong.output, &right.output) > 0.1);
        assert!(right.gradients.iter().zip(&wrong.gradients).all(|(right, wrong)| difference(wrong, right) > 0.1));
    }
}

#[test]
fn the_gradient_of_matrices_can_wait_for_w() {
    let _turn = turn();
    for device in devices() {
        let tracked = device.clone().autodiff();
        let (counts, d, h) = ([4, 0, 3], 5, 6);
        let bounds = ints(&offsets(&counts), [4], &tracked);
        let leaf = |seed, shape: [usize; 3]| {
            tensor(&noise(seed, shape.iter().product()), shape, &tracked, DType::F32).require_grad()
        };
        let (x, weight) = (leaf(47, [1, 7, d]), leaf(48, [3, d, h]));
        let run = || grouped_matmul(x.clone().reshape([7, d]), &parameter(weight.clone()), bounds.clone());
        let at_once = run().square().sum().backward();
        let expected = [x.grad(&at_once).unwrap(), weight.grad(&at_once).unwrap()].map(numbers);

        let deferral = Deferral::default();
        let loss = deferral.scope(|| run().square().sum());
        let mut gradients = Dispatch::backward(loss.into_dispatch());
        let of = |leaf: &Tensor<3>, gradients: &_| {
            Dispatch::grad(&leaf.clone().into_dispatch(), gradients).map(|g| numbers(Tensor::<3>::from_dispatch(g)))
        };
        assert_eq!(deferral.waiting(), 1, "the weight's matmul is not deferred to W on {device:?}");
        assert!(of(&weight, &gradients).is_none(), "I computed W's gradient");
        assert!(difference(&of(&x, &gradients).unwrap(), &expected[0]) < 1e-6);
        deferral.run(&mut gradients).unwrap();
        assert!(difference(&of(&weight, &gradients).unwrap(), &expected[1]) < 1e-6);
    }
}
