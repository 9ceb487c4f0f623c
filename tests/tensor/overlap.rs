//! Collectives of captured stages run beside computation.

use crate::model::{batch, builder_of};
use crate::plain::{SEQUENCE, SMALL};
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, AutodiffBackend, Backend, Capture, Dispatch, DispatchTensor, Flex, backend_extension};
use burn::module::{Module, Param};
use burn::optim::SgdConfig;
use burn::tensor::{DType, Device, Shape, Tensor};
use burn_pipeline::cost::{LinkCost, LinkCosts};
use burn_pipeline::program::{CapturedOp, record_op};
use burn_pipeline::stage::{SplitBackward, Stage, StageBox};
use burn_pipeline::tensor_group::TensorGroup;
use burn_pipeline::{Batch, Pipeline, Size};
use std::time::{Duration, Instant};

/// How many exchanges of a program's text have a product between start and wait, and how many there are.
fn beside_products(program: &str) -> (usize, usize) {
    let (mut open, mut filled, mut all) = (Vec::new(), 0, 0);
    // Tensors are written with a `%`: the summary of a compiled program has none.
    for line in program.lines().filter(|line| line.contains('%')) {
        if line.contains("start of ") {
            open.push(false);
            all += 1;
        } else if line.contains("wait for ") {
            filled += usize::from(open.remove(0));
        } else if line.contains("Matmul") {
            open.iter_mut().for_each(|filled| *filled = true);
        }
    }
    (filled, all)
}

#[test]
fn gradients_of_weights_stand_beside_the_exchanges_of_a_backward() {
    for (config, compile) in [(SMALL, false), (SMALL, true), (SEQUENCE, false), (SEQUENCE, true)] {
        let builder = builder_of(config, ("1F1B", 1), (1, 1, 2)).split(SplitBackward::Captured).compile(compile);
        let mut pipeline = builder.build().unwrap();
        pipeline.step(batch(&config, 8), 0.1).unwrap();
        let (_, engine) = pipeline.engines().unwrap().swap_remove(0);
        let backward = engine.programs[0].backward();
        let text = if compile { backward.compiled().unwrap() } else { backward.to_string() };
        let (filled, all) = beside_products(&text);
        println!(
            "{config:?}, compiled {compile}: {filled} of {all} exchanges of the backward have products beside them"
        );
        // Of the input of each block's attention and feed-forward layer, and of the head's.
        assert!(filled >= 9, "{filled} of {all}: {text}");
    }
}

/// A product whose weight's gradient takes as long as a message does.
#[backend_extension(Flex, Capture, Autodiff)]
trait SlowOps: Backend {
    fn slow(x: FloatTensor<Self>, w: FloatTensor<Self>) -> FloatTensor<Self>;
    fn slow_input(of_y: FloatTensor<Self>, w: FloatTensor<Self>) -> FloatTensor<Self>;
    fn slow_weight(x: FloatTensor<Self>, of_y: FloatTensor<Self>) -> FloatTensor<Self>;
}

const TIME: Duration = Duration::from_millis(300);

impl SlowOps for Flex {
    fn slow(x: FloatTensor<Self>, w: FloatTensor<Self>) -> FloatTensor<Self> {
        Self::float_matmul(x, w)
    }

    fn slow_input(of_y: FloatTensor<Self>, w: FloatTensor<Self>) -> FloatTensor<Self> {
        Self::float_matmul(of_y, Self::float_transpose(w))
    }

    fn slow_weight(x: FloatTensor<Self>, of_y: FloatTensor<Self>) -> FloatTensor<Self> {
        std::thread::sleep(TIME);
        Self::float_matmul(Self::float_transpose(x), of_y)
    }
}

#[derive(Debug, Clone, Copy)]
enum Slow {
    Forward,
    Input,
    Weight,
}

impl CapturedOp for Slow {
    fn name(&self) -> String {
        format!("slow {self:?}")
    }

    fn outputs(&self, inputs: &[(Shape, DType)]) -> Vec<(Shape, DType)> {
        let [(a, dtype), (b, _)] = inputs else { return Vec::new() };
        let shape = match self {
            Self::Forward => [a[0], b[1]],
            Self::Input => [a[0], b[0]],
            Self::Weight => [a[1], b[1]],
        };
        vec![(Shape::new(shape), *dtype)]
    }

    fn run(&self, mut inputs: Vec<DispatchTensor>) -> Vec<DispatchTensor> {
        let (b, a) = (inputs.pop().unwrap(), inputs.pop().unwrap());
        vec![match self {
            Self::Forward => Dispatch::slow(a, b),
            Self::Input => Dispatch::slow_input(a, b),
            Self::Weight => Dispatch::slow_weight(a, b),
        }]
    }
}

fn recorded(op: Slow, a: FloatTensor<Capture>, b: FloatTensor<Capture>) -> FloatTensor<Capture> {
    record_op(op, vec![a, b]).unwrap().remove(0)
}

impl SlowOps for Capture {
    fn slow(x: FloatTensor<Self>, w: FloatTensor<Self>) -> FloatTensor<Self> {
        recorded(Slow::Forward, x, w)
    }

    fn slow_input(of_y: FloatTensor<Self>, w: FloatTensor<Self>) -> FloatTensor<Self> {
        recorded(Slow::Input, of_y, w)
    }

    fn slow_weight(x: FloatTensor<Self>, of_y: FloatTensor<Self>) -> FloatTensor<Self> {
        recorded(Slow::Weight, x, of_y)
    }
}

#[derive(Debug)]
struct SlowStep;

impl<B: Backend + SlowOps> Backward<B, 2> for SlowStep {
    type State = (FloatTensor<B>, FloatTensor<B>);

    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, _: &mut Checkpointer) {
        let of_y = grads.consume::<B>(&ops.node);
        let ([x_node, w_node], (x, w)) = (ops.parents, ops.state);
        if let Some(node) = x_node {
            grads.register::<B>(node.id, B::slow_input(of_y.clone(), w));
        }
        if let Some(node) = w_node {
            grads.register::<B>(node.id, B::slow_weight(x, of_y));
        }
    }
}

impl<B: Backend + SlowOps, C: CheckpointStrategy> SlowOps for Autodiff<B, C> {
    fn slow(x: FloatTensor<Self>, w: FloatTensor<Self>) -> FloatTensor<Self> {
        let ((x, x_node), (w, w_node)) = (x.into_parts(), w.into_parts());
        let y = B::slow(x.clone(), w.clone());
        match SlowStep.prepare::<C>([x_node, w_node]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish((x, w), y),
            OpsKind::UnTracked(prep) => prep.finish(y),
        }
    }

    fn slow_input(of_y: FloatTensor<Self>, w: FloatTensor<Self>) -> FloatTensor<Self> {
        Self::from_inner(B::slow_input(Self::inner(of_y), Self::inner(w)))
    }

    fn slow_weight(x: FloatTensor<Self>, of_y: FloatTensor<Self>) -> FloatTensor<Self> {
        Self::from_inner(B::slow_weight(Self::inner(x), Self::inner(of_y)))
    }
}

#[derive(Module, Debug)]
struct Layer {
    scale: Param<Tensor<2>>,
    weight: Param<Tensor<2>>,
    #[module(skip)]
    group: TensorGroup,
}

impl Stage for Layer {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
        // The gradient of `scale` needs that of the product's input, summed over members.
        let x = self.group.copy_to(x * self.scale.val());
        Tensor::from_dispatch(Dispatch::slow(x.into_dispatch(), self.weight.val().into_dispatch()))
    }
}

/// The loss of each step, and the shortest step.
fn steps(split: SplitBackward, compile: bool) -> (Vec<u64>, Duration) {
    let network =
        LinkCosts { default: LinkCost { latency: TIME.as_secs_f64(), ..LinkCost::default() }, between: vec![] };
    let mut pipeline = Pipeline::builder()
        .schedule("1F1B", Size::new(1, 1))
        .devices(vec![Device::flex()])
        .stages(|at| {
            let ones = |shape: [usize; 2]| Param::from_tensor(Tensor::<2>::ones(shape, &at.device));
            let layer = Layer { scale: ones([1, 4]), weight: ones([4, 4]), group: at.group.clone() };
            StageBox::with_loss(layer, |y: Tensor<2>, t: Tensor<2>| (y - t).square().mean())
        })
        .optimizer(|| SgdConfig::new().init())
        .split(split)
        .compile(compile)
        .tensor_parallel(2)
        .delayed(network)
        .build()
        .unwrap();
    let x = Tensor::<2>::ones([2, 4], &Device::flex());
    let mut losses = Vec::new();
    let mut step = || {
        let began = Instant::now();
        losses.push(pipeline.step(Batch::new(x.clone()).target(x.clone()), 0.01).unwrap().loss.to_bits());
        began.elapsed()
    };
    step();
    let shortest = (0..3).map(|_| step()).min().unwrap();
    (losses, shortest)
}

#[test]
fn a_step_hides_an_exchange_behind_the_weights_gradient() {
    let (losses, blocking) = steps(SplitBackward::Eager, false);
    println!("a step takes {blocking:?} where collectives block");
    assert!(blocking >= 2 * TIME, "one message and one gradient, one after the other");
    for compile in [false, true] {
        let (same, took) = steps(SplitBackward::Captured, compile);
        println!("captured, compiled {compile}: a step takes {took:?}");
        assert_eq!(same, losses);
        assert!(took >= TIME && took < TIME * 17 / 10, "{took:?}");
    }
}
