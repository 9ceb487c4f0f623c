//! The captured engine gives the results of the plain engine: outputs, gradients of inputs and weights, and errors.

use super::models::{
    Bare, Constant, Detached, Frozen, Lookup, Noisy, Running, Several, Through, Tied, Tower, Twice, WIDTH, device,
    noise,
};
use crate::cases::read;
use burn::module::Module;
use burn::nn::LinearConfig;
use burn::optim::SgdConfig;
use burn::tensor::{Device, GradientCheckpointingStrategy, Int, Tensor};
use burn_pipeline::payload::{AnyTensor, Boundary, Payload, TensorKind};
use burn_pipeline::stage::{Accumulation, SingleStage, SplitBackward, Stage, StageBox, StageError};

/// The results of one microbatch: outputs, and gradients of the input.
type Given = (Vec<Vec<f32>>, Vec<Option<Vec<f32>>>);

fn choose(stage: StageBox, split: SplitBackward) -> SingleStage {
    SingleStage::new(stage, split, true).trained(Accumulation::AsTheyCome, Some(SgdConfig::new().init()))
}

/// The gradients of the float outputs: their own numbers in reverse order. With `missing`, every third one is
/// missing.
fn seeds(outputs: &Payload, missing: bool) -> Vec<Option<AnyTensor>> {
    let seed = |(place, output): (usize, &AnyTensor)| {
        let comes = output.kind() == TensorKind::Float && !(missing && place % 3 == 0);
        comes.then(|| output.clone().scale(-0.5))
    };
    outputs.tensors().enumerate().map(seed).collect()
}

/// Two steps of three microbatches each, with whole or split backwards and several microbatches in flight.
fn run(stage: &mut SingleStage, input: &dyn Fn() -> (Payload, Payload), split: bool) -> Vec<Given> {
    let mut given = Vec::new();
    for step in 0..2 {
        let outputs: Vec<Payload> = (0..3)
            .map(|microbatch| {
                let (input, extra) = input();
                let output = stage.forward(microbatch, input, extra).unwrap();
                assert_eq!(stage.held(), microbatch + 1);
                output
            })
            .collect();
        let mut gradients = Vec::new();
        for (microbatch, output) in outputs.iter().enumerate() {
            let seeds = seeds(output, step == 1);
            gradients.push(match split {
                true => stage.backward_input(microbatch, seeds).unwrap(),
                false => stage.backward(microbatch, seeds).unwrap(),
            });
            assert_eq!(stage.held(), if split { 3 } else { 2 - microbatch });
        }
        for microbatch in (0..3).filter(|_| split) {
            stage.backward_weight(&[microbatch]).unwrap();
            assert_eq!(stage.held(), 2 - microbatch);
        }
        for (output, gradients) in outputs.iter().zip(gradients) {
            let inputs = gradients.iter().map(|g| g.as_ref().map(read)).collect();
            given.push((output.tensors().map(read).collect(), inputs));
        }
        let weights = stage.gradients().iter().map(|gradient| gradient.as_ref().map(read)).collect();
        given.push((Vec::new(), weights));
        stage.optimize(0.1);
        given.push((stage.weights().iter().map(read).collect(), Vec::new()));
    }
    given
}

fn assert_agreement<M: Stage>(module: &M, input: impl Fn() -> (Payload, Payload)) {
    let kept = input();
    let input = || kept.clone();
    for wants in [true, false] {
        let stage = |split| {
            let stage = choose(StageBox::new(module.clone()), split);
            if wants { stage } else { stage.without_input_gradient() }
        };
        let expected = run(&mut stage(SplitBackward::Eager), &input, false);
        for split in [true, false] {
            let mut captured = stage(SplitBackward::Captured);
            let given = run(&mut captured, &input, split);
            let name = std::any::type_name::<M>();
            assert_eq!(given, expected, "{name}, input gradient {wants}, split {split}");
            assert!(captured.report().captured);
        }
    }
}

fn floats() -> (Payload, Payload) {
    (noise([4, WIDTH]).into_payload(), ().into_payload())
}

fn ids<const D: usize>(shape: [usize; D]) -> Tensor<D, Int> {
    let count = shape.iter().product::<usize>() as i64;
    Tensor::<1, Int>::arange(0..count, &Device::flex()).mul_scalar(7).remainder_scalar(5).reshape(shape)
}

#[test]
fn a_tower_of_linear_layers() {
    assert_agreement(&Tower::new(3), floats);
}

#[test]
fn one_weight_used_twice() {
    assert_agreement(&Twice::new(), floats);
}

#[test]
fn tied_weights() {
    assert_agreement(&Tied::new(), floats);
}

#[test]
fn several_outputs_of_which_one_is_a_function_of_another_one_the_input_and_one_untracked() {
    assert_agreement(&Several::new(), || ((noise([4, WIDTH]), ids([4, WIDTH])).into_payload(), ().into_payload()));
}

#[test]
fn frozen_weights() {
    assert_agreement(&Frozen::new(), floats);
    assert_agreement(&Frozen::all(), floats);
}

#[test]
fn integer_inputs_options_and_extras() {
    let extra = || (noise([2, 3]), vec![ids([2, 3]), ids([2, 3])]).into_payload();
    let without = || (ids([2, 3]), None::<Tensor<3>>).into_payload();
    assert_agreement(&Lookup::new(), || (without(), extra()));
    let with = || (ids([2, 3]), Some(noise([2, 3, WIDTH]))).into_payload();
    assert_agreement(&Lookup::new(), || (with(), extra()));
}

#[test]
fn constants_of_the_module() {
    assert_agreement(&Constant::new(), floats);
}

#[test]
fn no_parameters() {
    assert_agreement(&Bare::new(), floats);
}

#[test]
fn an_input_handed_on_twice() {
    assert_agreement(&Through::new(), floats);
}

#[test]
fn detached_parts() {
    assert_agreement(&Detached::new(), floats);
}

#[test]
fn dropout_that_is_switched_off() {
    assert_agreement(&Noisy::frozen(), floats);
}

#[test]
fn running_statistics_that_stay() {
    assert_agreement(&Running::frozen(), floats);
}

#[test]
fn gradient_checkpointing() {
    let device = device().gradient_checkpointing();
    let layer = |_| LinearConfig::new(WIDTH, WIDTH).init(&device);
    let tower = Tower { layers: (0..3).map(layer).collect() };
    let strategy = tower.devices()[0].gradient_checkpointing_strategy();
    assert_eq!(strategy, Some(GradientCheckpointingStrategy::Balanced));
    assert_agreement(&tower, floats);
}

#[test]
fn shapes_that_change_are_captured_each_and_kept() {
    let mut stage = choose(StageBox::new(Tower::new(2)), SplitBackward::Captured);
    for (microbatch, rows) in [4, 2, 4, 3, 2].into_iter().enumerate() {
        stage.forward(microbatch, noise([rows, WIDTH]).into_payload(), Payload::default()).unwrap();
    }
    assert_eq!(stage.report().programs.len(), 3);
}

#[test]
fn dropout_uses_one_mask_for_all_parts_and_a_new_one_each_microbatch() {
    let module = Noisy::new();
    let weight: Vec<f32> = read(&AnyTensor::new(module.weight.val().inner()));
    let mut stage = choose(StageBox::new(module), SplitBackward::Captured);
    let rows = 64;
    let x = noise([rows, WIDTH]);
    let mut masks = Vec::new();
    for microbatch in 0..2 {
        let output = stage.forward(microbatch, x.clone().into_payload(), Payload::default()).unwrap();
        let y = read(output.tensors().next().unwrap());
        let ones = AnyTensor::new(Tensor::<2>::ones([rows, WIDTH], &Device::flex()));
        let dx = read(stage.backward_input(microbatch, vec![Some(ones)]).unwrap()[0].as_ref().unwrap());
        stage.backward_weight(&[microbatch]).unwrap();
        let dw = read(stage.gradients()[0].as_ref().unwrap());
        stage.clear();
        let x: Vec<f32> = x.to_data().iter::<f32>().collect();
        let mask: Vec<bool> = y.iter().map(|&y| y != 0.0).collect();
        let mut sums = [0.0f32; WIDTH];
        for place in 0..rows * WIDTH {
            let kept = if mask[place] { 2.0 } else { 0.0 };
            assert_eq!(dx[place], weight[place % WIDTH] * kept, "the input's gradient uses the forward's mask");
            sums[place % WIDTH] += x[place] * kept;
        }
        for (dw, sum) in dw.iter().zip(sums) {
            assert!((dw - sum).abs() < 1e-4, "the weight's gradient uses the forward's mask: {dw} and {sum}");
        }
        let kept = mask.iter().filter(|&&kept| kept).count() as f64 / mask.len() as f64;
        assert!((0.3..0.7).contains(&kept), "{kept} of all elements were kept");
        masks.push(mask);
    }
    assert_ne!(masks[0], masks[1]);
}

#[test]
fn errors_are_those_of_the_plain_engine() {
    let errors = |split| {
        let mut stage = choose(StageBox::new(Tower::new(1)), split);
        let mut errors: Vec<StageError> = Vec::new();
        let start = |stage: &mut SingleStage| drop(stage.forward(0, floats().0, Payload::default()).unwrap());
        errors.push(stage.forward(0, ids([4, 2]).into_payload(), Payload::default()).unwrap_err());
        errors.push(stage.forward(0, floats().0, noise([1, 1]).into_payload()).unwrap_err());
        errors.push(stage.loss(0, floats().0, Payload::default(), Payload::default()).unwrap_err());
        errors.push(stage.backward_input(7, Vec::new()).unwrap_err());
        errors.push(stage.backward_weight(&[7]).unwrap_err());
        errors.push(stage.backward(7, Vec::new()).unwrap_err());
        start(&mut stage);
        errors.push(stage.backward_input(0, Vec::new()).unwrap_err());
        start(&mut stage);
        errors.push(stage.backward(0, vec![Some(AnyTensor::new(noise([4, 1])))]).unwrap_err());
        errors.push(stage.backward(0, vec![None]).unwrap_err());
        start(&mut stage);
        stage.clear();
        assert_eq!(stage.held(), 0);
        errors
    };
    assert_eq!(errors(SplitBackward::Captured), errors(SplitBackward::Eager));
}
