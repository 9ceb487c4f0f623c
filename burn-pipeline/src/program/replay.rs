//! Runs programs on a device: `burn_router`'s interpreter behind a trait without the backend's type.

use super::custom::CustomOps;
use super::draws::{draw, drawn_as};
use super::error::ProgramError;
use super::recording::Recording;
use crate::payload::AnyTensor;
use burn::backend::ir::{BackendIr, HandleKind, OperationIr, TensorId, TensorIr};
use burn::backend::{BackendTensor, DispatchDevice, DispatchKindConversion, DispatchTensor};
use burn::tensor::{Device, TensorData};
use burn_router::TensorInterpreter;
use rand::rngs::StdRng;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

/// Running sums, by the result that may be added to each; `None` once it was added, and the result is the sum.
pub(crate) type Sums = HashMap<TensorId, Option<DispatchTensor>>;

/// One microbatch's run through the programs of a stage. It holds the tensors that later parts need.
pub(crate) trait Replay: Send {
    /// Feeds a tensor of this device, without autodiff.
    fn feed(&mut self, id: TensorId, tensor: DispatchTensor) -> Result<(), String>;
    /// Runs operations, up to the first one that gives something other than the program was made for.
    fn run(&mut self, operations: &[OperationIr]) -> Result<(), ProgramError>;
    /// Draws the random numbers of operations from this generator, instead of the device's.
    fn draw_from(&mut self, generator: StdRng);
    /// Takes a tensor out; it stays if its status says so.
    fn take(&mut self, tensor: &TensorIr) -> DispatchTensor;
}

/// Why a stage on another device cannot be replayed.
pub(crate) const NO_REPLAY: &str = "stages are replayed on Flex and CubeCL devices only";

/// A new run on a device, for programs with these custom operations; `None` if its backend cannot replay.
pub(crate) fn interpreter(device: &Device, custom: &CustomOps) -> Option<Box<dyn Replay>> {
    match device.clone().inner().as_dispatch() {
        DispatchDevice::Flex(inner) => Some(Box::new(Interpreter::<burn::backend::Flex>::new(*inner, device, custom))),
        #[cfg(feature = "cubecl-backend")]
        DispatchDevice::Cube(inner) => {
            Some(Box::new(Interpreter::<burn::backend::Cube>::new(inner.clone(), device, custom)))
        }
        _ => None,
    }
}

/// Runs a recording without inputs on a device, with draws from this generator, and returns its outputs; `None` if
/// the device's backend cannot replay.
pub(crate) fn computed(
    recording: &Recording,
    device: &Device,
    generator: StdRng,
) -> Option<Result<Vec<DispatchTensor>, String>> {
    let mut replay = interpreter(device, &recording.custom)?;
    replay.draw_from(generator);
    for (id, data) in &recording.constants {
        if let Err(reason) = replay.feed(*id, AnyTensor::from_data(TensorData::clone(data), device).into_dispatch()) {
            return Some(Err(reason));
        }
    }
    if let Err(error) = replay.run(&recording.operations) {
        return Some(Err(error.to_string()));
    }
    Some(Ok(recording.edges.outputs.iter().map(|output| replay.take(output)).collect()))
}

struct Interpreter<B: BackendIr> {
    operations: TensorInterpreter<B>,
    device: Device,
    generator: Option<StdRng>,
    /// The first error of a custom operation.
    failed: Arc<OnceLock<ProgramError>>,
}

impl<B: BackendIr> Interpreter<B>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    fn new(inner: B::Device, device: &Device, custom: &CustomOps) -> Self {
        let failed = Arc::default();
        let operations = TensorInterpreter::with_custom_ops(inner, custom.registry::<B>(&failed));
        Self { operations, device: device.clone(), generator: None, failed }
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
        self.operations.register_tensor_to_device(id, handle);
        Ok(())
    }

    fn run(&mut self, operations: &[OperationIr]) -> Result<(), ProgramError> {
        for op in operations {
            if let (Some(draw), Some(generator)) = (draw(op), &mut self.generator) {
                let (shape, dtype, distribution) = draw.what();
                let drawn = drawn_as(shape, dtype, distribution, generator);
                let drawn = AnyTensor::from_data(drawn, &self.device).into_dispatch();
                // Both are on this device, so this cannot fail.
                if self.feed(draw.out.id, drawn).is_ok() {
                    continue;
                }
            }
            self.operations.register_op(op.clone());
            if let Some(error) = self.failed.get() {
                return Err(error.clone());
            }
        }
        Ok(())
    }

    fn draw_from(&mut self, generator: StdRng) {
        self.generator = Some(generator);
    }

    fn take(&mut self, tensor: &TensorIr) -> DispatchTensor {
        <DispatchTensor as DispatchKindConversion<B>>::from_backend(match self.operations.get_tensor(tensor) {
            HandleKind::Float(tensor) => BackendTensor::Float(tensor),
            HandleKind::Int(tensor) => BackendTensor::Int(tensor),
            HandleKind::Bool(tensor) => BackendTensor::Bool(tensor),
            HandleKind::Quantized(tensor) => BackendTensor::Quantized(tensor),
        })
    }
}
