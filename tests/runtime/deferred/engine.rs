//! The eager engine runs `I` and `W` separately for layers that defer: numbers, reports, and errors.

use super::own::Wrong;
use crate::cases::read;
use burn::module::{Module, Param};
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Distribution, Int, Tensor};
use burn_pipeline::ops::{DeferredForward, deferred};
use burn_pipeline::payload::{AnyTensor, Boundary, Payload};
use burn_pipeline::stage::{Accumulation, DeferredShare, SingleStage, SplitBackward, Stage, StageBox, StageError};

/// One microbatch with weight gradients computed by `B`, or by `I` and then `W`.
struct Ran {
    input: Vec<Option<Vec<f32>>>,
    weights: Vec<Option<Vec<f32>>>,
    share: Option<DeferredShare>,
}

fn stage<M: Stage>(module: &M, split: SplitBackward, splits: bool) -> SingleStage {
    SingleStage::new(StageBox::new(module.clone()), split, splits).trained(Accumulation::Ordered, None)
}

fn deferring<M: Stage>(module: &M) -> SingleStage {
    stage(module, SplitBackward::Eager, true)
}

fn forward(stage: &mut SingleStage, microbatch: usize, input: impl Boundary) -> Vec<AnyTensor> {
    let output = stage.forward(microbatch, input.into_payload(), Payload::default()).unwrap();
    output.tensors().cloned().collect()
}

/// Numbers for the gradients of outputs.
fn seeds(outputs: &[AnyTensor]) -> Vec<Option<AnyTensor>> {
    let seed = |output: &AnyTensor| {
        let count = output.shape().num_elements();
        let numbers: Vec<f32> = (0..count).map(|i| ((i * 29) % 97) as f32 / 31.0 - 1.5).collect();
        let numbers = Tensor::<1>::from_floats(&*numbers, &Device::flex());
        Some(AnyTensor::new(numbers.reshape::<2, _>([output.shape()[0], count / output.shape()[0]])))
    };
    outputs.iter().map(seed).collect()
}

fn rows(gradients: &[Option<AnyTensor>]) -> Vec<Option<Vec<f32>>> {
    gradients.iter().map(|gradient| gradient.as_ref().map(read)).collect()
}

fn weights(stage: &mut SingleStage) -> Vec<Option<Vec<f32>>> {
    rows(&stage.gradients())
}

fn run<M: Stage>(module: &M, splits: bool, whole: bool, input: impl Boundary + Clone) -> Ran {
    let mut stage = stage(module, SplitBackward::Eager, splits);
    let mut given = Vec::new();
    // Both forwards run first, as in schedules.
    let outputs: Vec<_> = (0..2).map(|microbatch| forward(&mut stage, microbatch, input.clone())).collect();
    for (microbatch, outputs) in outputs.iter().enumerate() {
        given = match whole {
            true => stage.backward(microbatch, seeds(outputs)).unwrap(),
            false => stage.backward_input(microbatch, seeds(outputs)).unwrap(),
        };
    }
    if !whole {
        assert_eq!(stage.report().deferred, None, "nothing is measured before the first W");
        assert!(weights(&mut stage).iter().all(Option::is_none), "I adds no weight gradient");
        (0..2).rev().for_each(|microbatch| stage.backward_weight(&[microbatch]).unwrap());
    }
    assert_eq!(stage.held(), 0);
    Ran { input: rows(&given), weights: weights(&mut stage), share: stage.report().deferred }
}

/// Asserts that `B` and `I`+`W` of a split schedule equal the plain engine bit for bit; returns the deferred share.
fn assert_equal<M: Stage>(module: &M, input: impl Boundary + Clone) -> DeferredShare {
    let plain = run(module, false, true, input.clone());
    assert!(plain.weights.iter().any(Option::is_some));
    assert_eq!(plain.share, None, "a plan that does not split defers nothing");
    let late = run(module, false, false, input.clone());
    assert_eq!(late.share, None);
    let whole = run(module, true, true, input.clone());
    let split = run(module, true, false, input);
    for (what, other) in [("late", &late), ("B", &whole), ("I and W", &split)] {
        assert_eq!(other.input, plain.input, "{what}: gradients of the input");
        assert_eq!(other.weights, plain.weights, "{what}: gradients of the weights");
    }
    assert_eq!(whole.share, split.share);
    split.share.unwrap()
}

fn device() -> Device {
    Device::flex().autodiff()
}

fn square() -> Linear {
    LinearConfig::new(6, 6).init(&device())
}

fn noise() -> Tensor<2> {
    Tensor::random([4, 6], Distribution::Normal(0.0, 1.0), &Device::flex())
}

/// Defines the test's stages from their parts and a forward function.
macro_rules! stages {
    ($(
        $(#[$doc:meta])*
        $name:ident { $($field:ident: $type:ty),* } ($self:ident, $x:ident: $input:ty) -> $output:ty $body:block
    )*) => {$(
        $(#[$doc])*
        #[derive(Module, Debug)]
        struct $name { $($field: $type),* }

        impl Stage for $name {
            type Input = $input;
            type Extra = ();
            type Output = $output;

            fn forward(&$self, $x: $input, (): ()) -> $output $body
        }
    )*};
}

stages! {
    /// A tower whose layers all defer.
    Tower { layers: Vec<Linear> } (self, x: Tensor<2>) -> Tensor<2> {
        self.layers.iter().fold(x, |x, layer| relu(layer.forward_deferred(x)))
    }
    /// One weight, used twice.
    Twice { linear: Linear } (self, x: Tensor<2>) -> Tensor<2> {
        self.linear.forward_deferred(relu(self.linear.forward_deferred(x)))
    }
    /// A layer that defers and one that does not.
    Half { deferred: Linear, plain: Linear } (self, x: Tensor<2>) -> Tensor<2> {
        self.plain.forward(relu(self.deferred.forward_deferred(x)))
    }
    /// One weight, in a layer that defers and in an operation that does not.
    Tied { linear: Linear, other: Linear } (self, x: Tensor<2>) -> Tensor<2> {
        self.other.forward_deferred(self.linear.forward_deferred(x)).matmul(self.linear.weight.val().transpose())
    }
    /// A table that a layer that defers reads and that is also the head's weight.
    TiedTable { table: Embedding, body: Linear } (self, ids: Tensor<2, Int>) -> Tensor<2> {
        let rows = self.table.forward_deferred(ids).sum_dim(1).squeeze_dim::<2>(1);
        self.body.forward_deferred(rows).matmul(self.table.weight.val().transpose())
    }
    /// An intermediate value, and a function of it.
    TwoOutputs { a: Linear, b: Linear } (self, x: Tensor<2>) -> (Tensor<2>, Tensor<2>) {
        let hidden = self.a.forward_deferred(x);
        (hidden.clone(), self.b.forward_deferred(relu(hidden)))
    }
    /// A forward that reads a value and so cannot be captured.
    Reads { a: Linear, b: Linear } (self, x: Tensor<2>) -> Tensor<2> {
        let y = self.a.forward_deferred(x);
        if y.clone().sum().into_scalar::<f32>() > 0.0 { self.b.forward_deferred(relu(y)) } else { relu(y) }
    }
    /// An operation whose gradient of the weight has a wrong shape.
    Mistaken { linear: Linear } (self, x: Tensor<2>) -> Tensor<2> {
        let operands = vec![x.into_dispatch(), self.linear.weight.val().into_dispatch()];
        Tensor::from_dispatch(deferred(Wrong { operand: 1 }, operands))
    }
    /// Two weights in sequence, the first of which does not affect the output.
    Unused { used: Linear, unused: Linear } (self, x: Tensor<2>) -> Tensor<2> {
        drop(self.unused.forward_deferred(x.clone()));
        self.used.forward_deferred(x)
    }
}

const LINEAR: usize = 6 * 6 + 6;

#[test]
fn a_tower_defers_all_it_has() {
    let share = assert_equal(&Tower { layers: vec![square(), square(), square()] }, noise());
    assert_eq!(share, DeferredShare { operations: 3, elements: 3 * LINEAR, of: 3 * LINEAR });
    assert_eq!(share.share(), 1.0);
}

#[test]
fn a_weight_used_twice_is_deferred_twice() {
    let share = assert_equal(&Twice { linear: square() }, noise());
    assert_eq!(share, DeferredShare { operations: 2, elements: LINEAR, of: LINEAR });
}

#[test]
fn a_layer_that_does_not_defer_is_right_beside_one_that_does() {
    let share = assert_equal(&Half { deferred: square(), plain: square() }, noise());
    assert_eq!(share, DeferredShare { operations: 1, elements: LINEAR, of: 2 * LINEAR });
}

#[test]
fn a_weight_tied_to_a_plain_operation_counts_as_not_deferred() {
    let share = assert_equal(&Tied { linear: square(), other: square() }, noise());
    assert_eq!(share, DeferredShare { operations: 2, elements: 2 * LINEAR - 36, of: 2 * LINEAR });
}

#[test]
fn a_table_tied_to_a_head_is_right() {
    let ids = Tensor::<2, Int>::from_ints([[1, 2, 1], [4, 4, 0]], &Device::flex());
    let stage = TiedTable { table: EmbeddingConfig::new(5, 6).init(&device()), body: square() };
    let share = assert_equal(&stage, ids);
    assert_eq!(share, DeferredShare { operations: 2, elements: LINEAR, of: LINEAR + 30 });
}

#[test]
fn a_module_that_holds_one_weight_in_two_layers_is_right() {
    let (one, bias) = (square(), square().bias);
    let other = Linear { weight: one.weight.clone(), bias };
    let stage = Tower { layers: vec![one, other] };
    let share = assert_equal(&stage, noise());
    assert_eq!(share, DeferredShare { operations: 2, elements: 36 + 12, of: 36 + 12 });
}

#[test]
fn an_intermediate_output_and_a_function_of_it_are_right() {
    assert_eq!(assert_equal(&TwoOutputs { a: square(), b: square() }, noise()).operations, 2);
}

#[test]
fn a_layer_that_the_outputs_do_not_depend_on_gets_no_gradient() {
    let share = assert_equal(&Unused { used: square(), unused: square() }, noise());
    assert_eq!(share, DeferredShare { operations: 1, elements: LINEAR, of: LINEAR });
}

#[test]
fn frozen_weights_get_no_gradient() {
    let mut frozen = square();
    frozen.weight = frozen.weight.set_require_grad(false);
    let stage = Tower { layers: vec![square(), frozen, square().no_grad(), square()] };
    let share = assert_equal(&stage, noise());
    // The frozen weight's bias is trained by Burn's own layer.
    assert_eq!(share, DeferredShare { operations: 2, elements: 2 * LINEAR, of: 2 * LINEAR + 6 });
    let ran = run(&stage, true, false, noise());
    let there: Vec<bool> = ran.weights.iter().map(Option::is_some).collect();
    assert_eq!(there, [true, true, false, true, false, false, true, true]);
}

#[test]
fn a_gradient_checkpointing_device_is_right() {
    let device = device().gradient_checkpointing();
    let layer = || LinearConfig::new(6, 6).init(&device);
    let share = assert_equal(&Tower { layers: vec![layer(), layer(), layer()] }, noise());
    assert_eq!(share.share(), 1.0);
}

#[test]
fn a_weight_gradient_without_its_input_gradient_is_refused() {
    let mut stage = deferring(&Tower { layers: vec![square()] });
    let outputs = forward(&mut stage, 0, noise());
    assert_eq!(stage.backward_weight(&[0]), Err(StageError::NotHeld));
    stage.backward_input(0, seeds(&outputs)).unwrap();
    stage.backward_weight(&[0]).unwrap();
    assert_eq!(stage.backward_weight(&[0]), Err(StageError::NotHeld));
}

#[test]
fn a_stage_that_cannot_be_captured_defers_where_the_library_chooses() {
    let module = Reads { a: square(), b: square() };
    let plain = run(&module, false, true, Tensor::<2>::ones([4, 6], &Device::flex()));
    let mut stage = stage(&module, SplitBackward::Auto, true);
    for microbatch in 0..2 {
        let outputs = forward(&mut stage, microbatch, Tensor::<2>::ones([4, 6], &Device::flex()));
        stage.backward_input(microbatch, seeds(&outputs)).unwrap();
        stage.backward_weight(&[microbatch]).unwrap();
    }
    assert_eq!(weights(&mut stage), plain.weights);
    let report = stage.report();
    assert_eq!((report.captured, report.deferred.unwrap().share()), (false, 1.0));
    assert!(report.reason.contains("cannot be captured"), "{}", report.reason);
}

#[test]
fn a_gradient_that_does_not_fit_fails_w_by_name() {
    let linear = LinearConfig::new(6, 3).with_bias(false).init(&device());
    let mut stage = deferring(&Mistaken { linear });
    let outputs = forward(&mut stage, 0, noise());
    stage.backward_input(0, seeds(&outputs)).unwrap();
    let error = stage.backward_weight(&[0]).unwrap_err();
    assert!(matches!(&error, StageError::Deferred(error) if error.operand == 1), "{error}");
    assert!(error.to_string().contains("`wrong` gave a gradient of shape [4, 3] for operand 1"), "{error}");
}

#[test]
fn what_waits_is_let_go_after_a_failure() {
    let weight = Param::from_tensor(Tensor::<2>::ones([6, 6], &device()));
    let mut stage = deferring(&Tower { layers: vec![Linear { weight, bias: None }] });
    let outputs = forward(&mut stage, 0, noise());
    stage.backward_input(0, seeds(&outputs)).unwrap();
    assert_eq!(stage.held(), 1);
    stage.clear();
    assert_eq!(stage.held(), 0);
    assert_eq!(stage.backward_weight(&[0]), Err(StageError::NotHeld));
}
