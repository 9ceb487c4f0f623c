//! Gradient injection is the identity in the forward, leaves the hidden gradient unchanged, and gives the loss its
//! scale as gradient. Compared with the composed form, and with finite differences through a whole layer of
//! experts.

use crate::cases::noise;
use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::activation::gelu;
use burn::tensor::{DType, Device, Tensor, TensorData};
use burn_pipeline_moe::auxiliary::{AuxiliaryLosses, AuxiliaryWeights};
use burn_pipeline_moe::layers::{BlockKind, MixtureOfExperts, MixtureOfExpertsConfig};
use burn_pipeline_moe::ops::inject;
use burn_pipeline_moe::router::{Capacity, Scoring};

fn devices() -> [Device; 2] {
    let device = Device::flex().autodiff();
    [device.clone(), device.gradient_checkpointing()]
}

fn rows<const D: usize>(seed: u64, shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::<1>::from_floats(&*noise(seed, shape.iter().product()), device).reshape(shape)
}

fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}

#[test]
fn gradients_equal_those_of_the_composed_form_bit_for_bit() {
    for device in devices() {
        let leaf = |seed| rows::<2>(seed, [3, 5], &device).require_grad();
        let (x, w, upstream) = (leaf(1), leaf(2), rows::<2>(3, [3, 5], &device));
        let main = |x: &Tensor<2>, w: &Tensor<2>| gelu(x.clone() * w.clone());
        let auxiliary = |w: &Tensor<2>| w.clone().exp().mean();
        // The composed form needs to know the main loss; the injected one does not.
        let composed = (main(&x, &w) * upstream.clone()).sum() + auxiliary(&w).mul_scalar(0.375);
        let expected = composed.backward();
        let scale = Tensor::<1>::from_floats([0.375], &device);
        let hidden = inject(main(&x, &w), auxiliary(&w), scale);
        assert_eq!(numbers(hidden.clone()), numbers(main(&x, &w)), "the forward is the identity");
        let got = (hidden * upstream).sum().backward();
        for leaf in [&x, &w] {
            assert_eq!(numbers(leaf.grad(&got).unwrap()), numbers(leaf.grad(&expected).unwrap()));
        }
    }
}

#[test]
fn the_losses_gradient_does_not_depend_on_what_arrives_from_downstream() {
    let device = Device::flex().autodiff();
    let gradient = |upstream: f64| {
        let x = rows::<1>(1, [4], &device).require_grad();
        let hidden = Tensor::<1>::ones([2], &device);
        let scale = Tensor::<1>::from_floats([2.0], &device);
        let gradients = inject(hidden, x.clone().sum(), scale).mul_scalar(upstream).sum().backward();
        numbers(x.grad(&gradients).unwrap())
    };
    assert_eq!((gradient(1.0), gradient(0.0)), (vec![2.0; 4], vec![2.0; 4]));
}

#[test]
fn without_autodiff_it_is_the_identity_and_a_plain_scale_is_taken() {
    let plain = Device::flex();
    let x = rows::<2>(1, [2, 2], &plain);
    let one = Tensor::<1>::ones([1], &plain);
    assert_eq!(numbers(inject(x.clone(), one.clone(), one.clone())), numbers(x.clone()));
    for device in devices() {
        let w = rows::<1>(2, [3], &device).require_grad();
        let gradients = inject(rows::<1>(3, [3], &device), w.clone().sum(), one.clone()).sum().backward();
        assert_eq!(numbers(w.grad(&gradients).unwrap()), [1.0; 3]);
    }
}

#[test]
#[should_panic(expected = "one element")]
fn a_loss_of_several_elements_is_refused() {
    let device = Device::flex().autodiff();
    let two = Tensor::<1>::ones([2], &device);
    inject(two.clone(), two.clone(), two);
}

fn doubles<const D: usize>(shape: [usize; D], values: Vec<f64>) -> Tensor<D> {
    Tensor::from_data(TensorData::new(values, shape), (&Device::flex().autodiff(), DType::F64)).require_grad()
}

/// Converts to f64, so that difference quotients keep enough digits.
struct Doubles;

impl ModuleMapper for Doubles {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|tensor| doubles(tensor.dims(), tensor.into_data().iter::<f64>().collect()))
    }
}

/// Adds `step` to one number of one parameter.
struct Nudge {
    parameter: usize,
    number: usize,
    step: f64,
    at: usize,
}

impl ModuleMapper for Nudge {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        self.at += 1;
        if self.at != self.parameter + 1 {
            return param;
        }
        param.map(|tensor| {
            let shape = tensor.dims();
            let mut values: Vec<f64> = tensor.into_data().iter::<f64>().collect();
            values[self.number] += self.step;
            doubles(shape, values)
        })
    }
}

const SCALE: f64 = 0.75;

struct Layer {
    losses: AuxiliaryLosses,
    x: Tensor<3>,
    upstream: Tensor<3>,
}

impl Layer {
    /// `sum(y * upstream) + SCALE * auxiliary`, from the forward alone.
    fn composed(&self, layer: &MixtureOfExperts) -> f64 {
        let (y, auxiliary) = layer.forward(self.x.clone());
        let main = (y * self.upstream.clone()).sum();
        (main + self.losses.total(&[auxiliary]).unwrap().mul_scalar(SCALE)).into_scalar::<f64>()
    }

    /// The gradients with the auxiliary loss injected, never added.
    fn injected(&self, layer: &MixtureOfExperts) -> Vec<Vec<f64>> {
        let (y, auxiliary) = layer.forward(self.x.clone());
        let scale = Tensor::<1>::from_floats([SCALE], &y.device());
        let gradients = (self.losses.inject(y, &[auxiliary], scale) * self.upstream.clone()).sum().backward();
        let mut read = Read(&gradients, Vec::new());
        layer.visit(&mut read);
        read.1
    }
}

struct Read<'a>(&'a burn::tensor::Gradients, Vec<Vec<f64>>);

impl burn::module::ModuleVisitor for Read<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let gradient = param.val().grad(self.0);
        self.1.push(gradient.map(|g| g.into_data().iter::<f64>().collect()).unwrap_or_default());
    }
}

#[test]
fn gradients_through_a_layer_of_experts_equal_finite_differences() {
    let device = Device::flex().autodiff();
    let double = |seed| rows::<3>(seed, [2, 5, 4], &device).cast(DType::F64);
    let weights = AuxiliaryWeights { load_balance: 1.5, router_z: 0.5, depth_router: 0.0 };
    let losses = AuxiliaryLosses::new(weights, &[BlockKind::Experts, BlockKind::Dense]);
    let case = Layer { losses, x: double(1).mul_scalar(2.0), upstream: double(2) };
    for (scoring, capacity) in [
        (Scoring::Softmax, Capacity::Dropless),
        (Scoring::Sigmoid, Capacity::Factor(1.0)),
        (Scoring::Softmax, Capacity::Factor(0.5)),
    ] {
        let config = MixtureOfExpertsConfig::new(4, 3, 3).with_shared(1).with_scoring(scoring).with_capacity(capacity);
        let layer = burn_pipeline::stage::init_seeded(7, &device, |device| config.init(device)).map(&mut Doubles);
        let gradients = case.injected(&layer);
        let mut checked = 0;
        for (parameter, gradient) in gradients.iter().enumerate() {
            for number in (0..gradient.len()).step_by(if parameter == 0 { 1 } else { 5 }) {
                let at = |step| case.composed(&layer.clone().map(&mut Nudge { parameter, number, step, at: 0 }));
                let quotient = (at(1e-5) - at(-1e-5)) / 2e-5;
                let difference = (quotient - gradient[number]).abs();
                assert!(
                    difference < 1e-6 * (1.0 + quotient.abs()),
                    "{scoring:?}: {parameter}[{number}]: {difference:e}"
                );
                checked += 1;
            }
        }
        assert!(checked > 20 && gradients[0].iter().any(|g| g.abs() > 1e-3), "the router learns");
    }
}
