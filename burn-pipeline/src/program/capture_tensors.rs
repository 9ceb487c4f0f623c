//! Tensors of Burn's capture device under autodiff.
//!
//! Burn's dispatch layer refuses to put capture tensors under autodiff or to run their backward ("Capture tensors do
//! not support autodiff"), but the operations themselves exist: this module makes the four refused calls on the
//! concrete type.

use burn::backend::autodiff::grads::Gradients;
use burn::backend::ir::{TensorId, TensorIr, TensorStatus};
use burn::backend::ops::{BoolTensorOps, FloatTensorOps, IntTensorOps};
use burn::backend::tensor::FloatTensor;
use burn::backend::{
    Autodiff, AutodiffBackend, BackendTensor, Capture, Dispatch, DispatchAutodiffContext, DispatchDevice,
    DispatchTensor, DispatchTensorKind, TensorMetadata, set_default_dtypes,
};
use burn::tensor::{DType, Device, DeviceConfig, DeviceSettings, GradientCheckpointingStrategy, Shape};

/// Returns true if a capture device has the default element types of the device that it stands for.
pub(crate) fn alike(capture: &Device, like: &Device) -> bool {
    let types = |settings: DeviceSettings| (settings.float_dtype, settings.int_dtype, settings.bool_dtype);
    types(capture.settings()) == types(like.clone().inner().settings())
}

/// Gives a capture device, in an open scope, the default element types of the device that it stands for. A device can
/// be given types other than its own only once. Burn keeps these settings until the process ends: 72 bytes for each
/// recording.
pub(crate) fn configured(capture: &Device, like: &Device) -> Result<(), String> {
    if alike(capture, like) {
        return Ok(());
    }
    let settings = like.clone().inner().settings();
    let DeviceSettings { float_dtype, int_dtype, bool_dtype, .. } = settings;
    let config = DeviceConfig::default().float_dtype(float_dtype).int_dtype(int_dtype).bool_dtype(bool_dtype);
    capture.clone().configure(config).map_err(|error| error.to_string())?;
    // Burn keeps one set of settings for the dispatched device and one for the backend's own. Autodiff reads the
    // second when it composes an operation from several.
    match capture.as_dispatch() {
        DispatchDevice::Capture(own) => {
            set_default_dtypes::<Capture>(own, float_dtype, int_dtype, bool_dtype).map_err(|error| error.to_string())
        }
        _ => Ok(()),
    }
}

/// A tensor that stands for one that is fed later. It has no value, so a forward that reads it fails.
pub(crate) fn placeholder(shape: &[usize], dtype: DType, device: &Device) -> DispatchTensor {
    let (shape, device) = (Shape::from(shape.to_vec()), device.as_dispatch());
    match dtype {
        dtype if dtype.is_bool() => Dispatch::bool_zeros(shape, device, dtype.into()),
        dtype if dtype.is_int() || dtype.is_uint() => Dispatch::int_zeros(shape, device, dtype.into()),
        dtype => Dispatch::float_zeros(shape, device, dtype.into()),
    }
}

/// A captured tensor as a leaf of a new graph.
pub(crate) fn leaf(tensor: DispatchTensor, strategy: GradientCheckpointingStrategy, tracked: bool) -> DispatchTensor {
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
pub(crate) fn lowered(tensor: DispatchTensor) -> DispatchTensor {
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
pub(crate) fn edge(tensor: &DispatchTensor) -> Result<TensorIr, String> {
    let id = match &tensor.kind {
        DispatchTensorKind::Capture(
            BackendTensor::Float(plain) | BackendTensor::Int(plain) | BackendTensor::Bool(plain),
        ) => Some(plain.id()),
        _ => tracked(tensor).map(|tracked| tracked.primitive().id()),
    };
    let unknown = "it returns a tensor that it did not compute from its input, extra, target or parameters";
    id.map(|id| named(id, tensor)).ok_or_else(|| unknown.to_owned())
}

fn named(id: TensorId, tensor: &impl TensorMetadata) -> TensorIr {
    TensorIr { id, shape: tensor.shape(), dtype: tensor.dtype(), status: TensorStatus::ReadOnly }
}

pub(crate) fn backward(root: &DispatchTensor) -> Result<Gradients, String> {
    tracked(root).map(|root| root.clone().backward()).ok_or_else(|| "its root is not a captured tensor".to_owned())
}

/// A leaf's gradient as an edge of the recording.
pub(crate) fn gradient(leaf: &DispatchTensor, gradients: &Gradients) -> Option<TensorIr> {
    let gradient = tracked(leaf)?.grad(gradients)?;
    Some(named(gradient.id(), &gradient))
}

fn tracked(tensor: &DispatchTensor) -> Option<&FloatTensor<Autodiff<Capture>>> {
    let DispatchTensorKind::Autodiff(inner) = &tensor.kind else { return None };
    match &**inner {
        DispatchTensorKind::Capture(BackendTensor::Autodiff(tensor)) => Some(tensor),
        _ => None,
    }
}
