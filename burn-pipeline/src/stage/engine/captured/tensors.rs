//! Tensors of Burn's capture device under autodiff.
//!
//! Burn's dispatch layer refuses to put capture tensors under autodiff or to run their backward ("Capture tensors
//! do not support autodiff"), but the operations themselves are there: the four refused calls are made on the
//! concrete type here.

use burn::backend::autodiff::grads::Gradients;
use burn::backend::ir::{TensorId, TensorIr, TensorStatus};
use burn::backend::ops::{BoolTensorOps, FloatTensorOps, IntTensorOps};
use burn::backend::tensor::FloatTensor;
use burn::backend::{
    Autodiff, AutodiffBackend, BackendTensor, Capture, Dispatch, DispatchAutodiffContext, DispatchTensor,
    DispatchTensorKind, TensorMetadata,
};
use burn::tensor::{DType, Device, GradientCheckpointingStrategy, Shape};

/// A tensor that stands for one that is fed later. It has no value, so a forward that reads it fails.
pub(super) fn placeholder(shape: &[usize], dtype: DType, device: &Device) -> DispatchTensor {
    let (shape, device) = (Shape::from(shape.to_vec()), device.as_dispatch());
    match dtype {
        dtype if dtype.is_bool() => Dispatch::bool_zeros(shape, device, dtype.into()),
        dtype if dtype.is_int() || dtype.is_uint() => Dispatch::int_zeros(shape, device, dtype.into()),
        dtype => Dispatch::float_zeros(shape, device, dtype.into()),
    }
}

/// A captured tensor as a leaf of a new graph.
pub(super) fn leaf(tensor: DispatchTensor, strategy: GradientCheckpointingStrategy, tracked: bool) -> DispatchTensor {
    let kind = match tensor.kind {
        DispatchTensorKind::Capture(BackendTensor::Float(tensor)) => {
            let leaf = <Autodiff<Capture> as AutodiffBackend>::from_inner(tensor);
            let leaf = if tracked { leaf.require_grad() } else { leaf };
            let inner = DispatchTensorKind::Capture(BackendTensor::Autodiff(leaf));
            DispatchTensorKind::Autodiff(Box::new(inner))
        }
        kind => kind,
    };
    DispatchTensor { kind, autodiff: DispatchAutodiffContext::Enabled(strategy) }
}

/// A captured tensor without autodiff.
pub(super) fn lowered(tensor: DispatchTensor) -> DispatchTensor {
    let kind = match tensor.kind {
        DispatchTensorKind::Autodiff(inner) => match *inner {
            DispatchTensorKind::Capture(BackendTensor::Autodiff(tensor)) => {
                DispatchTensorKind::Capture(BackendTensor::Float(tensor.into_primitive()))
            }
            other => DispatchTensorKind::Autodiff(Box::new(other)),
        },
        kind => kind,
    };
    DispatchTensor { kind, autodiff: DispatchAutodiffContext::Disabled }
}

/// A captured tensor as an edge of the recording.
pub(super) fn edge(tensor: &DispatchTensor) -> Result<TensorIr, String> {
    let named = |id: TensorId| {
        let (shape, dtype) = (tensor.shape(), tensor.dtype());
        TensorIr { id, shape, dtype, status: TensorStatus::ReadOnly }
    };
    match &tensor.kind {
        DispatchTensorKind::Capture(BackendTensor::Float(tensor)) => Ok(named(tensor.id())),
        DispatchTensorKind::Capture(BackendTensor::Int(tensor)) => Ok(named(tensor.id())),
        DispatchTensorKind::Capture(BackendTensor::Bool(tensor)) => Ok(named(tensor.id())),
        _ => {
            match tracked(tensor) {
                Some(tensor) => Ok(named(tensor.primitive().id())),
                None => Err("it returns a tensor that it did not compute from its input, extra, target or parameters"
                    .to_owned()),
            }
        }
    }
}

/// Runs the backward of a captured root.
pub(super) fn backward(root: &DispatchTensor) -> Result<Gradients, String> {
    tracked(root).map(|root| root.clone().backward()).ok_or_else(|| "its root is not a captured tensor".to_owned())
}

/// A leaf's gradient as an edge of the recording.
pub(super) fn gradient(leaf: &DispatchTensor, gradients: &Gradients) -> Option<TensorIr> {
    let gradient = tracked(leaf)?.grad(gradients)?;
    let (id, shape, dtype) = (gradient.id(), gradient.shape(), gradient.dtype());
    Some(TensorIr { id, shape, dtype, status: TensorStatus::ReadOnly })
}

fn tracked(tensor: &DispatchTensor) -> Option<&FloatTensor<Autodiff<Capture>>> {
    let DispatchTensorKind::Autodiff(inner) = &tensor.kind else { return None };
    match &**inner {
        DispatchTensorKind::Capture(BackendTensor::Autodiff(tensor)) => Some(tensor),
        _ => None,
    }
}
