//! A mixture of experts on a device that runs the kernels, compared with the same weights on Flex, which does not.

use super::{difference, integers, noise, numbers, tensor};
use crate::{coarser, devices, turn};
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{DType, Device, Gradients, Tensor};
use burn_pipeline::stage::init_seeded;
use burn_pipeline_moe::layers::{MixtureOfExperts, MixtureOfExpertsConfig};
use burn_pipeline_moe::ops::has_kernels;
use burn_pipeline_moe::router::{Capacity, Scoring};

const SHAPE: [usize; 3] = [2, 5, 4];

fn layer(config: &MixtureOfExpertsConfig, device: &Device) -> MixtureOfExperts {
    // Drawn on one device, so that both have the same weights.
    let drawn = init_seeded(61, &Device::flex().autodiff(), |device| config.init(device));
    drawn.fork(&device.clone().autodiff())
}

struct Visited<'a>(&'a Gradients, Vec<Vec<f64>>);

impl ModuleVisitor for Visited<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(gradient) = param.val().grad(self.0) {
            self.1.push(numbers(gradient));
        }
    }
}

/// Returns the output, the auxiliary losses and the gradients of all weights; then the load and the dropped
/// choices.
fn run(config: &MixtureOfExpertsConfig, device: &Device) -> (Vec<Vec<f64>>, Vec<i64>) {
    let layer = layer(config, device);
    let x = tensor(&noise(62, SHAPE.iter().product()), SHAPE, &device.clone().autodiff(), DType::F32).require_grad();
    let (y, left) = layer.forward(x.clone());
    let (balance, z) = (left.load_balance.unwrap(), left.router_z.unwrap());
    let weights = tensor(&noise(63, SHAPE.iter().product()), SHAPE, &device.clone().autodiff(), DType::F32);
    let loss = (y.clone() * weights).sum() * 100.0 + balance.clone() + z.clone();
    let gradients = loss.backward();
    let mut visited = Visited(&gradients, Vec::new());
    layer.visit(&mut visited);
    assert!(visited.1.len() >= 4, "router, gate, up and down need gradients");
    let mut all = vec![numbers(y), numbers(balance), numbers(z), numbers(x.grad(&gradients).unwrap())];
    all.extend(visited.1);
    let counts = [integers(left.load.unwrap()), integers(left.dropped.unwrap())].concat();
    (all, counts)
}

#[test]
fn a_layer_with_kernels_equals_the_layer_without() {
    let _turn = turn();
    let config = |capacity, scoring| {
        let config = MixtureOfExpertsConfig::new(SHAPE[2], 3, 5).with_top_k(2).with_capacity(capacity);
        config.with_scoring(scoring).with_shared(1)
    };
    for device in devices() {
        assert!(
            has_kernels(&Tensor::<1>::zeros([1], &device)) && !has_kernels(&Tensor::<1>::zeros([1], &Device::flex()))
        );
        let most = 1e-5 * f64::from(coarser(&device));
        for (capacity, scoring) in [
            (Capacity::Factor(1.25), Scoring::Softmax),
            (Capacity::Factor(0.5), Scoring::Sigmoid),
            (Capacity::Dropless, Scoring::Softmax),
        ] {
            let config = config(capacity, scoring);
            let ((got, counts), (expected, expected_counts)) = (run(&config, &device), run(&config, &Device::flex()));
            assert_eq!(counts, expected_counts, "{capacity:?}: load and dropped choices");
            assert_eq!(got.len(), expected.len());
            for (index, (got, expected)) in got.iter().zip(&expected).enumerate() {
                let distance = difference(got, expected);
                assert!(distance < most, "{capacity:?}, {scoring:?}: number {index} is {distance:e} off");
            }
        }
    }
}
