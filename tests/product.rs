//! A matmul as a backend extension, with its two gradients: recorded by a capture, and tracked by autodiff. Tests can
//! give it a wrong result, and see when a weight's gradient is computed.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, AutodiffBackend, Backend, Capture, Dispatch, DispatchTensor, Flex, backend_extension};
use burn::tensor::{DType, Shape, Tensor};
use burn_pipeline::program::{CapturedOp, captured_for, record_op};
use std::cell::Cell;
use std::sync::OnceLock;

/// A matmul as an extension: `x` times `w`, and the two gradients.
#[backend_extension(Flex, Capture, Autodiff)]
pub trait ProductOps: Backend {
    /// `[n, d]` times `[d, h]`.
    fn product(x: FloatTensor<Self>, w: FloatTensor<Self>) -> FloatTensor<Self>;
    /// The gradient of `x`.
    fn product_input(of_y: FloatTensor<Self>, w: FloatTensor<Self>) -> FloatTensor<Self>;
    /// The gradient of `w`.
    fn product_weight(x: FloatTensor<Self>, of_y: FloatTensor<Self>) -> FloatTensor<Self>;
}

impl ProductOps for Flex {
    fn product(x: FloatTensor<Self>, w: FloatTensor<Self>) -> FloatTensor<Self> {
        Self::float_matmul(x, w)
    }

    fn product_input(of_y: FloatTensor<Self>, w: FloatTensor<Self>) -> FloatTensor<Self> {
        Self::float_matmul(of_y, Self::float_transpose(w))
    }

    fn product_weight(x: FloatTensor<Self>, of_y: FloatTensor<Self>) -> FloatTensor<Self> {
        ON_WEIGHT.get().into_iter().for_each(|note| note());
        Self::float_matmul(Self::float_transpose(x), of_y)
    }
}

/// A wrong result of an operation.
#[derive(Debug, Clone, Copy)]
pub enum Otherwise {
    /// Fewer rows.
    Rows,
    /// Another element type.
    Type,
    /// No tensor.
    Nothing,
}

thread_local! {
    /// The operation of this thread's stages that gives a wrong result, and how.
    pub static OTHERWISE: Cell<Option<(Product, Otherwise)>> = const { Cell::new(None) };
}

/// One of the three operations.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Product {
    /// The product.
    Forward,
    /// The gradient of `x`.
    Input,
    /// The gradient of `w`.
    Weight,
}

/// Is called whenever a weight's gradient is computed, once it is set.
pub static ON_WEIGHT: OnceLock<fn()> = OnceLock::new();

impl CapturedOp for Product {
    fn name(&self) -> String {
        format!("tests::{self:?}")
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
        let given = match self {
            Self::Forward => Dispatch::product(a, b),
            Self::Input => Dispatch::product_input(a, b),
            Self::Weight => Dispatch::product_weight(a, b),
        };
        let given = Tensor::<2>::from_dispatch(given);
        match OTHERWISE.get().filter(|(op, _)| op == self).map(|(_, otherwise)| otherwise) {
            None => vec![given.into_dispatch()],
            Some(Otherwise::Rows) => vec![given.narrow(0, 0, 1).into_dispatch()],
            Some(Otherwise::Type) => vec![given.cast(DType::F64).into_dispatch()],
            Some(Otherwise::Nothing) => Vec::new(),
        }
    }
}

fn recorded(op: Product, a: FloatTensor<Capture>, b: FloatTensor<Capture>) -> FloatTensor<Capture> {
    assert!(captured_for().is_some(), "a capture knows for which device it is");
    record_op(op, vec![a, b]).unwrap().remove(0)
}

impl ProductOps for Capture {
    fn product(x: FloatTensor<Self>, w: FloatTensor<Self>) -> FloatTensor<Self> {
        recorded(Product::Forward, x, w)
    }

    fn product_input(of_y: FloatTensor<Self>, w: FloatTensor<Self>) -> FloatTensor<Self> {
        recorded(Product::Input, of_y, w)
    }

    fn product_weight(x: FloatTensor<Self>, of_y: FloatTensor<Self>) -> FloatTensor<Self> {
        recorded(Product::Weight, x, of_y)
    }
}

#[derive(Debug)]
struct ProductStep;

impl<B: Backend + ProductOps> Backward<B, 2> for ProductStep {
    type State = (FloatTensor<B>, FloatTensor<B>);

    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, _: &mut Checkpointer) {
        let of_y = grads.consume::<B>(&ops.node);
        let ([x_node, w_node], (x, w)) = (ops.parents, ops.state);
        if let Some(node) = x_node {
            grads.register::<B>(node.id, B::product_input(of_y.clone(), w));
        }
        if let Some(node) = w_node {
            grads.register::<B>(node.id, B::product_weight(x, of_y));
        }
    }
}

impl<B: Backend + ProductOps, C: CheckpointStrategy> ProductOps for Autodiff<B, C> {
    fn product(x: FloatTensor<Self>, w: FloatTensor<Self>) -> FloatTensor<Self> {
        let ((x, x_node), (w, w_node)) = (x.into_parts(), w.into_parts());
        let y = B::product(x.clone(), w.clone());
        match ProductStep.prepare::<C>([x_node, w_node]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish((x, w), y),
            OpsKind::UnTracked(prep) => prep.finish(y),
        }
    }

    fn product_input(of_y: FloatTensor<Self>, w: FloatTensor<Self>) -> FloatTensor<Self> {
        Self::from_inner(B::product_input(Self::inner(of_y), Self::inner(w)))
    }

    fn product_weight(x: FloatTensor<Self>, of_y: FloatTensor<Self>) -> FloatTensor<Self> {
        Self::from_inner(B::product_weight(Self::inner(x), Self::inner(of_y)))
    }
}
