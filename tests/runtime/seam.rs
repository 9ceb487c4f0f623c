//! The autodiff seam: a stage's backward, seeded with gradients that arrive later, equals bit for bit Burn's own
//! backward of the sum of output times gradient.

use crate::cases::noise;
use burn::module::{Module, Param};
use burn::tensor::activation::{gelu, relu};
use burn::tensor::{Device, Int, Tensor};
use burn_pipeline::payload::{AnyTensor, Boundary, Payload};
use burn_pipeline::stage::{SingleStage, SplitBackward, Stage, StageBox, StageError};

const ROWS: usize = 5;
const WIDTH: usize = 7;

fn numbers(seed: u64, device: &Device) -> Tensor<2> {
    Tensor::<1>::from_floats(&*noise(seed, ROWS * WIDTH), device).reshape([ROWS, WIDTH])
}

fn devices() -> [(&'static str, Device); 2] {
    let device = Device::flex().autodiff();
    [("plain", device.clone()), ("checkpointing", device.gradient_checkpointing())]
}

/// Three outputs with a common part.
fn outputs(x: &Tensor<2>, w: &Tensor<2>) -> [Tensor<2>; 3] {
    let trunk = gelu(x.clone() * w.clone());
    [relu(trunk.clone()), trunk.clone().exp(), trunk * x.clone()]
}

fn floats(tensor: Tensor<2>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}

/// Leaf gradients by multiply-and-sum over the outputs that have a gradient.
fn by_sum(device: &Device, used: [bool; 3]) -> [Vec<f32>; 2] {
    let leaves = [1, 2].map(|seed| numbers(seed, device).require_grad());
    let terms = outputs(&leaves[0], &leaves[1]).into_iter().zip(10..).zip(used).filter(|(_, used)| *used);
    let sum = terms.map(|((y, seed), _)| (y * numbers(seed, device)).sum()).reduce(|a, b| a + b).unwrap();
    let gradients = sum.backward();
    leaves.map(|leaf| floats(leaf.grad(&gradients).unwrap()))
}

/// The outputs as those of a stage.
#[derive(Module, Debug)]
struct Three {
    w: Param<Tensor<2>>,
}

impl Stage for Three {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = (Tensor<2>, Tensor<2>, Tensor<2>);

    fn forward(&self, x: Tensor<2>, (): ()) -> Self::Output {
        outputs(&x, &self.w.val()).into()
    }
}

/// The same by a stage's backward, which may run on another thread.
fn by_seed(device: &Device, used: [bool; 3], elsewhere: bool) -> [Option<Vec<f32>>; 2] {
    let w = Param::from_tensor(numbers(2, device));
    let mut stage = SingleStage::new(StageBox::new(Three { w }), SplitBackward::Eager, false);
    stage.forward(0, numbers(1, &Device::flex()).into_payload(), Payload::default()).unwrap();
    let seeds = (10..).zip(used).map(|(number, used)| if used { seed(number) } else { None }).collect();
    let backward = move || {
        let inputs = stage.backward(0, seeds).unwrap();
        [inputs, stage.gradients()].map(|gradients| gradients[0].as_ref().map(read))
    };
    if elsewhere { std::thread::spawn(backward).join().unwrap() } else { backward() }
}

#[test]
fn a_seeded_backward_equals_multiply_and_sum_bit_for_bit() {
    for (name, device) in devices() {
        for pattern in 1..8 {
            let used = [0, 1, 2].map(|bit| pattern >> bit & 1 == 1);
            for elsewhere in [false, true] {
                let expected = by_sum(&device, used);
                assert!(expected.iter().flatten().any(|&g| g != 0.0));
                assert_eq!(
                    by_seed(&device, used, elsewhere),
                    expected.map(Some),
                    "{name}, outputs {used:?}, {elsewhere}"
                );
            }
        }
    }
}

#[test]
fn without_any_received_gradient_there_is_no_backward() {
    for (name, device) in devices() {
        assert_eq!(by_seed(&device, [false; 3], false), [None, None], "{name}");
    }
}

/// A stage with a tracked float output, an integer one, an untracked one, and another tracked one.
#[derive(Module, Debug)]
struct Forked {
    w: Param<Tensor<2>>,
}

impl Stage for Forked {
    type Input = (Tensor<2>, Tensor<2, Int>);
    type Extra = ();
    type Output = (Tensor<2>, Tensor<2, Int>, Tensor<2>, Tensor<2>);

    fn forward(&self, (x, ids): Self::Input, (): ()) -> Self::Output {
        let [y, z, _] = outputs(&x, &self.w.val());
        (y, ids, x.ones_like(), z)
    }
}

type Gradients = Vec<Option<AnyTensor>>;

fn forked(device: &Device) -> SingleStage {
    let w = Param::from_tensor(numbers(2, device));
    SingleStage::new(StageBox::new(Forked { w }), SplitBackward::Eager, false)
}

fn forward(stage: &mut SingleStage) -> Payload {
    let (x, ids) = (numbers(1, &Device::flex()), Tensor::<2, Int>::ones([ROWS, 1], &Device::flex()));
    stage.forward(0, (x, ids).into_payload(), Payload::default()).unwrap()
}

fn seed(seed: u64) -> Option<AnyTensor> {
    Some(AnyTensor::new(numbers(seed, &Device::flex())))
}

fn read(tensor: &AnyTensor) -> Vec<f32> {
    tensor.to_data().unwrap().iter::<f32>().collect()
}

/// The gradients of the input and of the weight.
fn run(mut stage: SingleStage, seeds: Gradients, split: bool) -> (Gradients, Vec<f32>) {
    forward(&mut stage);
    let inputs = match split {
        false => stage.backward(0, seeds).unwrap(),
        true => {
            let inputs = stage.backward_input(0, seeds).unwrap();
            assert!(stage.held() == 1 && stage.gradients()[0].is_none());
            stage.backward_weight(&[0]).unwrap();
            inputs
        }
    };
    assert_eq!(stage.held(), 0);
    (inputs, read(stage.gradients()[0].as_ref().unwrap()))
}

#[test]
fn a_stage_with_integer_and_untracked_outputs_gives_the_gradients_of_the_others() {
    for (name, device) in devices() {
        for (used, seeds) in [
            ([true, true, false], vec![seed(10), None, None, seed(11)]),
            // A gradient for an untracked output is ignored.
            ([true, true, false], vec![seed(10), None, seed(12), seed(11)]),
            ([false, true, false], vec![None, None, None, seed(11)]),
        ] {
            for split in [false, true] {
                let (inputs, weight) = run(forked(&device), seeds.clone(), split);
                let [x, w] = by_sum(&device, used);
                assert_eq!(inputs.len(), 2, "{name}");
                assert_eq!(inputs[0].as_ref().map(read), Some(x), "{name}, {used:?}, {split}");
                assert!(inputs[1].is_none(), "{name}: an integer has no gradient");
                assert_eq!(weight, w, "{name}, {used:?}, {split}");
            }
        }
    }
}

#[test]
fn outputs_leave_a_stage_without_autodiff_and_as_they_were() {
    let device = Device::flex().autodiff();
    let payload = forward(&mut forked(&device));
    assert!(payload.tensors().all(|tensor| !tensor.is_tracked() && !tensor.device().is_autodiff()));
    let [y, z, _] = outputs(&numbers(1, &device), &numbers(2, &device));
    let (got_y, ids, ones, got_z) = <Forked as Stage>::Output::from_payload(payload).unwrap();
    assert_eq!([floats(got_y), floats(got_z)], [floats(y), floats(z)]);
    assert_eq!(ids.into_data().iter::<i64>().collect::<Vec<_>>(), [1; ROWS]);
    assert_eq!(floats(ones), [1.0; ROWS * WIDTH]);
}

#[test]
fn a_seed_that_does_not_fit_its_output_is_refused() {
    let device = Device::flex().autodiff();
    let refuse = |seeds: Gradients| {
        let mut stage = forked(&device);
        forward(&mut stage);
        stage.backward(0, seeds).unwrap_err()
    };
    assert_eq!(refuse(vec![seed(10)]), StageError::GradientCount { got: 1, expected: 4 });
    let narrow = seed(10).map(|seed| seed.narrow(1, 0, 1));
    let error = refuse(vec![None, None, None, narrow]);
    assert!(matches!(&error, StageError::GradientSpec { output: 3, .. }), "{error}");
    let double = Tensor::<2>::ones([ROWS, WIDTH], &Device::flex()).cast(burn::tensor::DType::F64);
    let error = refuse(vec![Some(AnyTensor::new(double)), None, None, None]);
    assert!(matches!(&error, StageError::GradientSpec { output: 0, .. }), "{error}");
}

#[test]
fn backwards_that_were_not_prepared_are_refused() {
    let mut stage = forked(&Device::flex().autodiff());
    assert_eq!(stage.backward(0, vec![None; 4]).unwrap_err(), StageError::NotHeld);
    forward(&mut stage);
    assert_eq!(stage.backward_weight(&[0]).unwrap_err(), StageError::NotHeld);
    assert_eq!(stage.backward(1, vec![None; 4]).unwrap_err(), StageError::NotHeld);
    stage.backward(0, vec![None; 4]).unwrap();
    assert_eq!(stage.backward(0, vec![None; 4]).unwrap_err(), StageError::NotHeld);
}
