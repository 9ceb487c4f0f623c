//! The seeded backward as a custom operation of CubeCL's backend.

use crate::{assert_close, devices, floats, turn};
use burn::backend::{AutodiffBackend, Dispatch};
use burn::tensor::activation::gelu;
use burn::tensor::{Device, Distribution, Tensor};
use burn_pipeline::ops::HeldOutputs;

const SHAPE: [usize; 2] = [5, 7];

fn outputs(x: &Tensor<2>, w: &Tensor<2>) -> [Tensor<2>; 2] {
    let trunk = gelu(x.clone() * w.clone());
    [trunk.clone().exp(), trunk * x.clone()]
}

fn draw(device: &Device) -> Tensor<2> {
    Tensor::random(SHAPE, Distribution::Uniform(-1.0, 1.0), device)
}

#[test]
fn a_seeded_backward_equals_that_of_the_sum_of_output_times_gradient() {
    let _turn = turn();
    for device in devices() {
        let (values, seeds) = ([draw(&device), draw(&device)], [draw(&device), draw(&device)]);
        let leaves = || values.clone().map(|value| value.autodiff().require_grad());

        let summed = leaves();
        let [a, b] = outputs(&summed[0], &summed[1]);
        let gradients = ((a * seeds[0].clone().autodiff()).sum() + (b * seeds[1].clone().autodiff()).sum()).backward();
        let expected = summed.map(|leaf| floats(leaf.grad(&gradients).unwrap()));

        let seeded = leaves();
        let outputs = outputs(&seeded[0], &seeded[1]).map(Tensor::into_dispatch).into();
        let given = seeds.iter().map(|seed| Some(seed.clone().into_dispatch())).collect();
        let root = HeldOutputs::new(outputs).unwrap().seed(given).unwrap();
        let gradients = Dispatch::backward(root);
        for (leaf, expected) in seeded.into_iter().zip(&expected) {
            let got = Dispatch::grad(&leaf.into_dispatch(), &gradients).unwrap();
            assert_close(&floats(Tensor::<2>::from_dispatch(got)), expected, &format!("{device:?}"));
        }
    }
}
