//! Each deferred operation equals Burn's own bit for bit; which gradients are deferred, which are not, and what is
//! refused.

use super::own::Affine;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::{AutodiffBackend, Dispatch};
use burn::module::Param;
use burn::nn::conv::{Conv1dConfig, Conv2dConfig};
use burn::nn::{EmbeddingConfig, LinearConfig, PaddingConfig1d, PaddingConfig2d};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Int, Tensor};
use burn_pipeline::ops::{Deferral, DeferredForward, deferred, expert_matmul};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

fn device() -> Device {
    Device::flex().autodiff()
}

/// Numbers of both signs whose sums are rounded.
fn values<const D: usize>(seed: usize, shape: [usize; D]) -> Tensor<D> {
    let count: usize = shape.iter().product();
    let numbers: Vec<f32> = (0..count).map(|i| ((i * 37 + seed * 101) % 199) as f32 / 83.0 - 1.2).collect();
    Tensor::<1>::from_floats(&*numbers, &device()).reshape(shape)
}

pub(super) fn leaf<const D: usize>(seed: usize, shape: [usize; D]) -> Tensor<D> {
    values(seed, shape).detach().require_grad()
}

fn read<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}

/// A loss whose gradient differs from element to element.
pub(super) fn backward<const D: usize>(y: Tensor<D>) -> Gradients {
    let shape = y.dims();
    Dispatch::backward((y * values(9, shape)).sum().into_dispatch())
}

/// The gradients of some tensors, `None` for a missing one.
pub(super) type Rows = Vec<Option<Vec<f32>>>;

pub(super) fn row<const D: usize>(tensor: &Tensor<D>, gradients: &Gradients) -> Option<Vec<f32>> {
    Dispatch::grad(&tensor.clone().into_dispatch(), gradients).map(|g| read(Tensor::<D>::from_dispatch(g)))
}

/// Runs `forward` plainly and in a scope. There, the gradients of the first `inputs` tensors must exist after
/// backward, and the others only after the tasks have run. All must equal the plain ones bit for bit.
pub(super) fn assert_deferred<const D: usize>(
    what: &str,
    inputs: usize,
    operations: usize,
    plain: impl FnOnce() -> Tensor<D>,
    in_scope: impl FnOnce() -> Tensor<D>,
    rows: impl Fn(&Gradients) -> Rows,
) {
    let y = plain();
    let expected_output = read(y.clone());
    let expected = rows(&backward(y));
    assert!(expected.iter().all(Option::is_some), "{what}: the plain gradients are there");
    let deferral = Deferral::default();
    let y = deferral.scope(in_scope);
    assert_eq!(read(y.clone()), expected_output, "{what}: output");
    assert_eq!(deferral.waiting(), 0, "{what}: nothing waits before backward");
    let mut gradients = backward(y);
    assert_eq!(deferral.waiting(), operations, "{what}: operations that wait");
    let now = rows(&gradients);
    assert_eq!(now[..inputs], expected[..inputs], "{what}: gradients of inputs");
    assert!(now[inputs..].iter().all(Option::is_none), "{what}: a weight's gradient did not wait");
    deferral.run(&mut gradients).unwrap();
    assert_eq!(deferral.waiting(), 0, "{what}: nothing waits after");
    assert_eq!(rows(&gradients), expected, "{what}: gradients");
}

/// A layer with a weight and an optional bias, on an input that needs a gradient.
macro_rules! assert_layer_deferred {
    ($layer:ident, $x:ident, $($what:tt)*) => {
        assert_deferred(
            &format!($($what)*),
            1,
            1,
            || $layer.forward($x.clone()),
            || $layer.forward_deferred($x.clone()),
            |g| {
                let bias = $layer.bias.as_ref().map(|bias| row(&bias.val(), g));
                [row(&$x, g), row(&$layer.weight.val(), g)].into_iter().chain(bias).collect()
            },
        )
    };
}

fn linear<const D: usize>(shape: [usize; D], bias: bool) {
    let layer = LinearConfig::new(5, 3).with_bias(bias).init(&device());
    let x = leaf(1, shape);
    assert_layer_deferred!(layer, x, "on {shape:?}, bias: {bias}");
}

#[test]
fn linear_equals_burns_in_every_rank_with_and_without_bias() {
    for bias in [false, true] {
        linear([7, 5], bias);
        linear([2, 7, 5], bias);
        linear([2, 3, 4, 5], bias);
        linear([64, 1, 5], bias);
        linear([2, 32, 5], bias);
        linear([2, 3, 32, 5], bias);
        linear([1, 7, 5], bias);
        linear([3, 1, 1, 7, 5], bias);
    }
}

#[test]
fn a_vector_is_left_to_burns_linear() {
    let (layer, deferral) = (LinearConfig::new(5, 3).init(&device()), Deferral::default());
    let y = deferral.scope(|| layer.forward_deferred(leaf(1, [5])));
    assert!(row(&layer.weight.val(), &backward(y)).is_some());
    assert_eq!(deferral.waiting(), 0);
}

#[test]
fn embedding_equals_burns() {
    let layer = EmbeddingConfig::new(6, 4).init(&device());
    let ids = Tensor::<1, Int>::from_ints([5, 0, 0, 3, 5, 0], &device()).reshape([2, 3]);
    assert_deferred(
        "embedding",
        0,
        1,
        || layer.forward(ids.clone()),
        || layer.forward_deferred(ids.clone()),
        |g| vec![row(&layer.weight.val(), g)],
    );
}

#[test]
fn the_matmul_of_experts_equals_burns() {
    let (x, weight) = (leaf(1, [3, 7, 5]), Param::from_tensor(values(2, [3, 5, 4])));
    assert_deferred(
        "experts",
        1,
        1,
        || x.clone().matmul(weight.val()),
        || expert_matmul(x.clone(), &weight),
        |g| vec![row(&x, g), row(&weight.val(), g)],
    );
}

#[test]
fn a_matmul_broadcast_over_experts_is_burns() {
    let (x, weight, deferral) = (leaf(1, [3, 7, 5]), Param::from_tensor(values(2, [1, 5, 4])), Deferral::default());
    let expected = row(&weight.val(), &backward(x.clone().matmul(weight.val())));
    let gradients = backward(deferral.scope(|| expert_matmul(x, &weight)));
    assert_eq!((row(&weight.val(), &gradients), deferral.waiting()), (expected, 0));
}

#[test]
fn conv1d_equals_burns_for_every_padding() {
    for padding in [PaddingConfig1d::Valid, PaddingConfig1d::Same, PaddingConfig1d::Explicit(2, 1)] {
        for (kernel, stride, dilation, groups, bias) in
            [(3, 1, 1, 1, true), (4, 1, 1, 2, false), (2, 3, 1, 2, true), (3, 1, 2, 1, false)]
        {
            let layer = Conv1dConfig::new(4, 6, kernel)
                .with_stride(stride)
                .with_dilation(dilation)
                .with_groups(groups)
                .with_bias(bias)
                .with_padding(padding.clone())
                .init(&device());
            let x = leaf(1, [2, 4, 9]);
            assert_layer_deferred!(layer, x, "{layer:?}");
        }
    }
}

#[test]
fn conv2d_equals_burns_for_every_padding() {
    for padding in [PaddingConfig2d::Valid, PaddingConfig2d::Same, PaddingConfig2d::Explicit(2, 1, 0, 1)] {
        for (kernel, stride, groups, bias) in
            [([3, 3], [1, 1], 1, true), ([4, 2], [1, 2], 2, false), ([2, 3], [3, 1], 1, true)]
        {
            let layer = Conv2dConfig::new([2, 4], kernel)
                .with_stride(stride)
                .with_groups(groups)
                .with_bias(bias)
                .with_padding(padding.clone())
                .init(&device());
            let x = leaf(1, [2, 2, 7, 6]);
            assert_layer_deferred!(layer, x, "{layer:?}");
        }
    }
}

#[test]
fn an_input_that_needs_no_gradient_gets_none() {
    let (layer, x) = (LinearConfig::new(5, 3).init(&device()), values(1, [7, 5]));
    assert_deferred(
        "linear on data",
        0,
        1,
        || layer.forward(x.clone()),
        || layer.forward_deferred(x.clone()),
        |g| vec![row(&layer.weight.val(), g)],
    );
}

#[test]
fn a_weight_used_twice_adds_both_parts() {
    let layer = LinearConfig::new(5, 5).init(&device());
    let x = leaf(1, [7, 5]);
    assert_deferred(
        "x w w",
        1,
        2,
        || layer.forward(relu(layer.forward(x.clone()))),
        || layer.forward_deferred(relu(layer.forward_deferred(x.clone()))),
        |g| vec![row(&x, g), row(&layer.weight.val(), g), row(&layer.bias.as_ref().unwrap().val(), g)],
    );
}

#[test]
fn a_weight_shared_with_a_plain_operation_gets_the_plain_part_at_once() {
    let layer = LinearConfig::new(5, 5).with_bias(false).init(&device());
    let x = leaf(1, [7, 5]);
    let expected = row(&layer.weight.val(), &backward(layer.forward(x.clone()).matmul(layer.weight.val())));
    let deferral = Deferral::default();
    let y = deferral.scope(|| layer.forward_deferred(x.clone()).matmul(layer.weight.val()));
    let mut gradients = backward(y);
    let part = row(&layer.weight.val(), &gradients);
    assert!(part.is_some() && part != expected, "only one part is there");
    deferral.run(&mut gradients).unwrap();
    assert_eq!(row(&layer.weight.val(), &gradients), expected);
}

#[test]
fn a_weight_computed_from_others_gets_its_gradient_at_once() {
    let (x, base) = (leaf(1, [7, 5]), leaf(2, [5, 3]));
    let mut layer = LinearConfig::new(5, 3).init(&device());
    layer.weight = layer.weight.map(|_| values(2, [5, 3]));
    let merged = || deferred(Affine, [x.clone().into_dispatch(), base.clone().mul_scalar(0.5).into_dispatch()].into());
    let expected = backward(Tensor::<2>::from_dispatch(merged()));
    let deferral = Deferral::default();
    let gradients = backward(Tensor::<2>::from_dispatch(deferral.scope(merged)));
    assert_eq!((row(&base, &gradients), deferral.waiting()), (row(&base, &expected), 0));
    // With a bias that is a leaf, the weight's gradient flows through the graph and the bias's is deferred.
    let bias = leaf(3, [1, 3]);
    let merged = || {
        let operands = [x.clone(), base.clone().mul_scalar(0.5), bias.clone()].map(Tensor::into_dispatch);
        Tensor::<2>::from_dispatch(deferred(Affine, operands.into()))
    };
    let expected = backward(merged());
    let mut gradients = backward(deferral.scope(merged));
    assert_eq!((row(&base, &gradients), row(&bias, &gradients)), (row(&base, &expected), None));
    deferral.run(&mut gradients).unwrap();
    assert_eq!(row(&bias, &gradients), row(&bias, &expected));
}

#[test]
fn a_frozen_weight_leaves_nothing_and_a_frozen_bias_gets_nothing() {
    let (x, deferral) = (leaf(1, [7, 5]), Deferral::default());
    let mut layer = LinearConfig::new(5, 3).init(&device());
    layer.weight = layer.weight.set_require_grad(false);
    let expected = row(&x, &backward(layer.forward(x.clone())));
    let gradients = backward(deferral.scope(|| layer.forward_deferred(x.clone())));
    assert_eq!((row(&x, &gradients), deferral.waiting()), (expected, 0));
    let mut layer = LinearConfig::new(5, 3).init(&device());
    layer.bias = layer.bias.map(|bias| bias.set_require_grad(false));
    let expected = row(&layer.weight.val(), &backward(layer.forward(x.clone())));
    let mut gradients = backward(deferral.scope(|| layer.forward_deferred(x.clone())));
    deferral.run(&mut gradients).unwrap();
    assert_eq!(row(&layer.weight.val(), &gradients), expected);
    assert_eq!(row(&layer.bias.as_ref().unwrap().val(), &gradients), None);
}

#[test]
fn gradient_checkpointing_gives_the_same_numbers() {
    let device = device().gradient_checkpointing();
    let layers = [0, 1, 2].map(|_| LinearConfig::new(5, 5).init(&device));
    let x = Tensor::<2>::from_data(values(1, [7, 5]).into_data(), &device).require_grad();
    let weigh = Tensor::<2>::from_data(values(9, [7, 5]).into_data(), &device);
    let run = |y: Tensor<2>| Dispatch::backward((y * weigh.clone()).sum().into_dispatch());
    let rows = |g: &Gradients| -> Rows {
        layers.iter().map(|layer| row(&layer.weight.val(), g)).chain([row(&x, g)]).collect()
    };
    // Relu is memory-bound: its output, the next layer's input, is recomputed in backward.
    let expected = rows(&run(layers.iter().fold(x.clone(), |x, layer| layer.forward(relu(x).exp()))));
    let deferral = Deferral::default();
    let forward = || layers.iter().fold(x.clone(), |x, layer| layer.forward_deferred(relu(x).exp()));
    let mut gradients = run(deferral.scope(forward));
    assert_eq!(deferral.waiting(), 3);
    deferral.run(&mut gradients).unwrap();
    assert_eq!(rows(&gradients), expected);
}

#[test]
fn outside_a_scope_the_layers_are_burns_and_nothing_waits() {
    let (layer, x, deferral) = (LinearConfig::new(5, 3).init(&device()), leaf(1, [7, 5]), Deferral::default());
    deferral.scope(|| ());
    let expected = layer.forward(x.clone());
    let output = layer.forward_deferred(x.clone());
    assert_eq!(read(output.clone()), read(expected.clone()));
    let (gradients, expected) = (backward(output), backward(expected));
    assert_eq!(deferral.waiting(), 0);
    assert_eq!(row(&layer.weight.val(), &gradients), row(&layer.weight.val(), &expected));
}

#[test]
fn a_scope_ends_with_its_call_and_is_seen_by_its_thread_only() {
    let deferral = Deferral::default();
    deferral.scope(|| {
        assert!(Deferral::is_open());
        std::thread::scope(|threads| threads.spawn(|| assert!(!Deferral::is_open())).join().unwrap());
        Deferral::default().scope(|| ());
        assert!(Deferral::is_open(), "the outer scope goes on after the inner one");
    });
    assert!(!Deferral::is_open());
    let panicked = catch_unwind(AssertUnwindSafe(|| deferral.scope(|| resume_unwind(Box::new(())))));
    assert!(panicked.is_err() && !Deferral::is_open());
}
