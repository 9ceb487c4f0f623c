//! Backend extensions in a captured stage: each operation is recorded as one, cut into `F`, `I` and `W` with the
//! rest, and replayed by calling it.

use super::models::{WIDTH, noise};
use super::programs::{count, programs};
use crate::cases::read;
use burn::backend::{Capture, Dispatch};
use burn::module::{Module, Param};
use burn::tensor::activation::tanh;
use burn::tensor::{Device, Distribution, Int, Tensor};
use burn_pipeline::payload::{Boundary, Payload};
use burn_pipeline::program::{ProgramError, captured_for, record_op};
use burn_pipeline::stage::{SingleStage, SplitBackward, Stage, StageBox, StageError};
use pipeline_tests::product::{OTHERWISE, Otherwise, Product, ProductOps};

/// Layers whose matmuls are the extension's.
#[derive(Module, Debug)]
struct Products {
    weights: Vec<Param<Tensor<2>>>,
}

impl Products {
    fn new(layers: usize) -> Self {
        let device = Device::flex().autodiff();
        let weight = |_| Param::from_tensor(Tensor::random([WIDTH, WIDTH], Distribution::Normal(0.0, 0.5), &device));
        Self { weights: (0..layers).map(weight).collect() }
    }
}

impl Stage for Products {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
        self.weights
            .iter()
            .fold(x, |x, w| tanh(Tensor::from_dispatch(Dispatch::product(x.into_dispatch(), w.val().into_dispatch()))))
    }
}

/// The outputs and the gradients of the input and of the weights, of two microbatches in flight together.
fn run(module: &Products, split: SplitBackward) -> Vec<Vec<f32>> {
    let mut stage = SingleStage::new(StageBox::new(module.clone()), split, true);
    let numbers = || Tensor::<1, Int>::arange(0..(3 * WIDTH) as i64, &Device::flex()).float();
    let mut got = Vec::new();
    let mut outputs = Vec::new();
    for microbatch in 0..2 {
        let x = numbers().mul_scalar(0.01 * (microbatch + 1) as f64).sin().reshape([3, WIDTH]);
        outputs.push(stage.forward(microbatch, x.into_payload(), Payload::default()).unwrap());
    }
    for (microbatch, output) in outputs.iter().enumerate() {
        let seeds = output.tensors().map(|y| Some(y.clone().scale(-0.5))).collect();
        got.extend(output.tensors().map(read));
        got.extend(stage.backward_input(microbatch, seeds).unwrap().iter().flatten().map(read));
    }
    (0..2).for_each(|microbatch| stage.backward_weight(&[microbatch]).unwrap());
    got.extend(stage.gradients().iter().map(|gradient| read(gradient.as_ref().expect("a weight without gradient"))));
    got
}

#[test]
fn operations_of_extensions_are_replayed_with_the_numbers_of_the_plain_engine() {
    let module = Products::new(3);
    let expected = run(&module, SplitBackward::Eager);
    assert_eq!(expected.len(), 2 * 2 + 3);
    assert!(expected.iter().flatten().all(|number| number.is_finite()));
    assert_eq!(run(&module, SplitBackward::Captured), expected, "to the bit");
}

#[test]
fn operations_of_extensions_are_cut_like_others() {
    let layers = 3;
    let programs = programs(StageBox::new(Products::new(layers)), noise([4, WIDTH]).into_payload(), true);
    let counts = |program| ["Forward", "Input", "Weight"].map(|op| count(program, &format!("tests::{op}")));
    assert_eq!(counts(programs.forward()), [layers, 0, 0], "{programs}");
    assert_eq!(counts(programs.input()), [0, layers, 0], "{programs}");
    assert_eq!(counts(programs.weight()), [0, 0, layers], "{programs}");
    let names: Vec<&str> = programs.custom_operations().collect();
    assert_eq!(names, ["tests::Forward", "tests::Input", "tests::Weight"]);
}

#[test]
fn an_operation_that_gives_something_else_than_it_declares_ends_in_an_error_with_its_name() {
    for (compile, op) in [false, true]
        .into_iter()
        .flat_map(|compile| [Product::Forward, Product::Input, Product::Weight].map(|op| (compile, op)))
    {
        for (otherwise, got) in [(Otherwise::Rows, "[1, "), (Otherwise::Type, "of F64"), (Otherwise::Nothing, "0")] {
            let stage = StageBox::new(Products::new(3)).compiled(compile);
            let mut stage = SingleStage::new(stage, SplitBackward::Captured, true);
            let x = Tensor::<2>::ones([64, WIDTH], &Device::flex());
            OTHERWISE.set(Some((op, otherwise)));
            let run = || {
                let y = stage.forward(0, x.into_payload(), Payload::default())?;
                stage.backward_input(0, y.tensors().map(|y| Some(y.clone())).collect())?;
                stage.backward_weight(&[0])
            };
            let error = run().unwrap_err();
            OTHERWISE.set(None);
            let StageError::Program(ProgramError::Operation { operation, got: says, .. }) = &error else {
                panic!("{error}")
            };
            assert!(*operation == format!("tests::{op:?}") && says.contains(got), "{compile} {error}");
        }
    }
}

#[test]
fn outside_a_capture_of_a_stage_nothing_is_recorded() {
    assert!(captured_for().is_none());
    let capture = Device::capture();
    let scope = capture.capture_scope(|scope| {
        let x = Tensor::<2>::zeros([2, 2], &capture).try_into_primitive::<Capture>().unwrap();
        assert!(record_op(Product::Forward, vec![x.clone(), x]).is_none(), "nobody could replay it");
        scope.complete([], [])
    });
    let customs = scope.unwrap().graph.operations.iter().filter(|op| format!("{op:?}").starts_with("Custom")).count();
    assert_eq!(customs, 0);
}
