//! A stage's output is freed on the device once it has been sent, although its graph is still alive.

use crate::{devices, floats, turn};
use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};
use burn_pipeline::payload::{AnyTensor, Boundary, Payload};
use burn_pipeline::stage::{SingleStage, SplitBackward, Stage, StageBox};

/// 32 MiB.
const SHAPE: [usize; 2] = [2048, 4096];
const BYTES: u64 = (SHAPE[0] * SHAPE[1] * size_of::<f32>()) as u64;

/// Multiplies every row by the same factors. Its backward does not need the output.
#[derive(Module, Debug)]
struct Rows {
    factors: Param<Tensor<2>>,
}

impl Stage for Rows {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
        x * self.factors.val()
    }
}

fn in_use(device: &Device) -> u64 {
    device.sync().unwrap();
    device.memory_pool_usage().unwrap().bytes_in_use
}

#[test]
fn an_output_that_was_handed_on_is_free_on_the_device_while_its_graph_lives() {
    let _turn = turn();
    for device in devices() {
        let factors = Tensor::full([1, SHAPE[1]], 0.5, &device.clone().autodiff());
        let stage = StageBox::new(Rows { factors: Param::from_tensor(factors) });
        let mut stage = SingleStage::new(stage, SplitBackward::Eager, false);
        // One column, so that only the output is large.
        let input = Tensor::<2>::ones([SHAPE[0], 1], &device).into_payload();
        let before = in_use(&device);
        let output = stage.forward(0, input, Payload::default()).unwrap();
        let with_output = in_use(&device);
        assert!((with_output - before) * 10 >= BYTES * 9, "the output was not counted: {before}, then {with_output}");
        drop(output);
        let freed = with_output - in_use(&device);
        assert!(freed * 10 >= BYTES * 9, "only {freed} of {BYTES} bytes are free");

        let seed = Tensor::<2>::ones(SHAPE, &device);
        let gradients = stage.backward(0, vec![Some(AnyTensor::new(seed))]).unwrap();
        let input = gradients.into_iter().next().unwrap().unwrap().into_tensor::<2, burn::tensor::Float>().unwrap();
        assert!(floats(input).iter().all(|g| *g == 0.5 * SHAPE[1] as f32));
    }
}
