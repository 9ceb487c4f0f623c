//! The seeded backward as a custom operation of CubeCL's backend.

use crate::{assert_close, devices, floats, turn};
use burn::module::{Module, Param};
use burn::tensor::activation::gelu;
use burn::tensor::{Device, Distribution, Tensor};
use burn_pipeline::payload::{AnyTensor, Boundary, Payload};
use burn_pipeline::stage::{SingleStage, SplitBackward, Stage, StageBox};

const SHAPE: [usize; 2] = [5, 7];

fn outputs(x: &Tensor<2>, w: &Tensor<2>) -> [Tensor<2>; 2] {
    let trunk = gelu(x.clone() * w.clone());
    [trunk.clone().exp(), trunk * x.clone()]
}

#[derive(Module, Debug)]
struct Two {
    w: Param<Tensor<2>>,
}

impl Stage for Two {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = (Tensor<2>, Tensor<2>);

    fn forward(&self, x: Tensor<2>, (): ()) -> Self::Output {
        outputs(&x, &self.w.val()).into()
    }
}

fn draw(device: &Device) -> Tensor<2> {
    Tensor::random(SHAPE, Distribution::Uniform(-1.0, 1.0), device)
}

#[test]
fn a_seeded_backward_equals_that_of_the_sum_of_output_times_gradient() {
    let _turn = turn();
    for device in devices() {
        let (values, seeds) = ([draw(&device), draw(&device)], [draw(&device), draw(&device)]);
        let summed = values.clone().map(|value| value.autodiff().require_grad());
        let [a, b] = outputs(&summed[0], &summed[1]);
        let gradients = ((a * seeds[0].clone().autodiff()).sum() + (b * seeds[1].clone().autodiff()).sum()).backward();
        let expected = summed.map(|leaf| floats(leaf.grad(&gradients).unwrap()));

        let [x, w] = values;
        let stage = StageBox::new(Two { w: Param::from_tensor(w.autodiff()) });
        let mut stage = SingleStage::new(stage, SplitBackward::Eager, false);
        stage.forward(0, x.into_payload(), Payload::default()).unwrap();
        let inputs = stage.backward(0, seeds.map(|seed| Some(AnyTensor::new(seed))).into()).unwrap();
        for (got, expected) in inputs.into_iter().chain(stage.gradients()).zip(&expected) {
            let got = got.unwrap().into_tensor::<2, burn::tensor::Float>().unwrap();
            assert_close(&floats(got), expected, &format!("{device:?}"));
        }
    }
}
