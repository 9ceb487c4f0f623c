//! Running programs on a device: `burn_router`'s interpreter behind a trait without the backend's type.

use super::custom::CustomOps;
use burn::backend::ir::{BackendIr, HandleKind, OperationIr, TensorId, TensorIr};
use burn::backend::{BackendTensor, Dispatch, DispatchDevice, DispatchKindConversion, DispatchTensor};
use burn::tensor::{Device, TensorData};
use burn_router::TensorInterpreter;

/// One microbatch's run through the programs of a stage. It holds the tensors that later parts need.
pub(crate) trait Replay: Send {
    /// Gives it a tensor of this device, without autodiff.
    fn feed(&mut self, id: TensorId, tensor: DispatchTensor) -> Result<(), String>;
    /// Runs operations.
    fn run(&mut self, operations: &[OperationIr]);
    /// Takes a tensor out; it stays if its status says so.
    fn take(&mut self, tensor: &TensorIr) -> DispatchTensor;
}

/// Why a stage on another device cannot be replayed.
pub(crate) const NO_REPLAY: &str = "stages are replayed on Flex and CubeCL devices only";

/// A new run on a device, of programs with these custom operations; `None` where its backend cannot replay.
pub(crate) fn interpreter(device: &Device, custom: &CustomOps) -> Option<Box<dyn Replay>> {
    match device.clone().inner().as_dispatch() {
        #[cfg(feature = "flex")]
        DispatchDevice::Flex(device) => Some(Box::new(Interpreter::<burn::backend::Flex>::new(*device, custom))),
        #[cfg(feature = "cubecl-backend")]
        DispatchDevice::Cube(device) => Some(Box::new(Interpreter::<burn::backend::Cube>::new(device.clone(), custom))),
        #[allow(unreachable_patterns, reason = "with one backend, only capture and autodiff are left")]
        _ => None,
    }
}

/// A constant of a capture on the device that replays it.
pub(crate) fn on_device(data: TensorData, device: &Device) -> DispatchTensor {
    use burn::backend::ops::{BoolTensorOps, FloatTensorOps, IntTensorOps};
    let (plain, dtype) = (device.clone().inner(), data.dtype());
    match dtype {
        dtype if dtype.is_bool() => Dispatch::bool_from_data(data, plain.as_dispatch()),
        dtype if dtype.is_int() || dtype.is_uint() => Dispatch::int_from_data(data, plain.as_dispatch()),
        _ => Dispatch::float_from_data(data, plain.as_dispatch()),
    }
}

struct Interpreter<B: BackendIr>(TensorInterpreter<B>);

impl<B: BackendIr> Interpreter<B>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    fn new(device: B::Device, custom: &CustomOps) -> Self {
        Self(TensorInterpreter::with_custom_ops(device, custom.registry::<B>()))
    }
}

impl<B: BackendIr> Replay for Interpreter<B>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    fn feed(&mut self, id: TensorId, tensor: DispatchTensor) -> Result<(), String> {
        let handle = match <DispatchTensor as DispatchKindConversion<B>>::try_into_backend(tensor)? {
            BackendTensor::Float(tensor) => HandleKind::Float(tensor),
            BackendTensor::Int(tensor) => HandleKind::Int(tensor),
            BackendTensor::Bool(tensor) => HandleKind::Bool(tensor),
            other => return Err(format!("{} tensors cannot be replayed", other.name())),
        };
        self.0.register_tensor_to_device(id, handle);
        Ok(())
    }

    fn run(&mut self, operations: &[OperationIr]) {
        operations.iter().for_each(|op| self.0.register_op(op.clone()));
    }

    fn take(&mut self, tensor: &TensorIr) -> DispatchTensor {
        <DispatchTensor as DispatchKindConversion<B>>::from_backend(match self.0.get_tensor(tensor) {
            HandleKind::Float(tensor) => BackendTensor::Float(tensor),
            HandleKind::Int(tensor) => BackendTensor::Int(tensor),
            HandleKind::Bool(tensor) => BackendTensor::Bool(tensor),
            HandleKind::Quantized(tensor) => BackendTensor::Quantized(tensor),
        })
    }
}
