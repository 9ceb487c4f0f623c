//! Operations of backend extensions in captured programs: each is recorded as one operation, and replayed by calling
//! it.
//!
//! Guarantees: every custom operation of a program can be replayed, since the operation itself is kept with the
//! recording. Nothing is registered in advance, nothing is global, and this crate knows no extension.
//!
//! 1. While a stage is captured, its thread knows for which device ([`captured_for`]). An extension with kernels for
//!    that device records its operations whole, in its implementation for Burn's `Capture`; otherwise it composes
//!    them from Burn's own operations, which any device replays.
//! 2. [`record_op`] writes one `CustomOpIr` between the operations of the capture, and keeps the [`CapturedOp`] under
//!    its name. A backward is recorded the same way: its operations are split into `I` and `W` like any others.
//! 3. A replay hands the names and their operations to `burn_router`'s interpreter, which calls them with the tensors
//!    of the stage's own device. Their results are compared with their declarations. A program ends at one that
//!    differs, since the operations after it were made for the declared shapes.
//!
//! The registry of handlers by name is `burn_router`'s, made for its remote server.

use super::error::ProgramError;
use crate::scoped::scoped;
use burn::backend::ir::{BackendIr, CustomOpIr, HandleContainer, OperationIr, TensorIr};
use burn::backend::tensor::FloatTensor;
use burn::backend::{BackendTensor, Capture, DispatchKindConversion, DispatchTensor, TensorMetadata};
use burn::tensor::{DType, Device, Shape};
use burn_pipeline_plan::plan::Among;
use burn_router::{CustomOpRegistry, RouterClient, RouterTensor};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, OnceLock};

/// An operation of a backend extension that programs contain as one operation.
///
/// Its tensors are inputs; the value itself holds whatever else it reads (sizes, options).
pub trait CapturedOp: Debug + Send + Sync + 'static {
    /// Its name, which must include its options: two operations with one name count as the same.
    fn name(&self) -> String;

    /// Shape and element type of each output, computed only from those of its inputs.
    fn outputs(&self, inputs: &[(Shape, DType)]) -> Vec<(Shape, DType)>;

    /// Floating-point operations, given shapes and element types of all its tensors; by default one for each element of
    /// the largest.
    fn flops(&self, inputs: &[(Shape, DType)], outputs: &[(Shape, DType)]) -> u64 {
        let elements = |(shape, _): &(Shape, DType)| shape.num_elements() as u64;
        inputs.iter().chain(outputs).map(elements).max().unwrap_or(0)
    }

    /// Returns true if it exchanges tensors with the other ranks of the stage's group. All of them must run it at the
    /// same place of their rows, so it is never left out or left to `W`, and compiled programs keep the order of such
    /// operations. Ranks compare the names and the shapes and element types of inputs before a stage's first training
    /// forward runs.
    fn is_collective(&self) -> bool {
        false
    }

    /// Returns true if those ranks are the stage's data-parallel replicas, and not its tensor-parallel group.
    fn is_among_replicas(&self) -> bool {
        false
    }

    /// Returns the two halves of such an exchange, if it has them. The start gives to the others, does not wait and
    /// has no outputs. The wait takes from them and has the operation's outputs. Both read its inputs. A program runs
    /// other operations between them; on every rank it starts exchanges in the recorded order, and waits for them in
    /// that order.
    fn halves(&self) -> Option<[Arc<dyn CapturedOp>; 2]> {
        None
    }

    /// Runs it on tensors of the replaying device, without autodiff. The results must match `outputs` and be on the
    /// same device; otherwise the program ends with an error ([`ProgramError::Operation`]).
    fn run(&self, inputs: Vec<DispatchTensor>) -> Vec<DispatchTensor>;
}

/// The custom operations of a capture, by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct CustomOps(Arc<BTreeMap<String, Arc<dyn CapturedOp>>>);

/// One name means one operation.
impl PartialEq for CustomOps {
    fn eq(&self, other: &Self) -> bool {
        self.0.keys().eq(other.0.keys())
    }
}

impl CustomOps {
    /// Their names, in alphabetical order.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Returns true if any of them is a collective.
    pub(crate) fn exchanges(&self) -> bool {
        self.0.values().any(|op| op.is_collective())
    }

    /// The ranks that run this operation together, if it is a collective.
    pub(super) fn ranks_of(&self, op: &OperationIr) -> Option<Among> {
        let OperationIr::Custom(op) = op else { return None };
        let custom = self.0.get(&op.id).filter(|custom| custom.is_collective())?;
        Some(if custom.is_among_replicas() { Among::Replicas } else { Among::Members })
    }

    /// The names of an exchange's halves, if this operation has them.
    pub(super) fn halves(&self, op: &OperationIr) -> Option<[String; 2]> {
        let OperationIr::Custom(op) = op else { return None };
        Some(self.0.get(&op.id)?.halves()?.map(|half| half.name()))
    }

    /// The same operations, with halves in place of the exchanges that have them.
    pub(super) fn with_halves(&self) -> Self {
        let parts = |op: &Arc<dyn CapturedOp>| op.halves().map_or_else(|| vec![op.clone()], Vec::from);
        Self::of(self.0.values().flat_map(parts))
    }

    pub(super) fn of(ops: impl IntoIterator<Item = Arc<dyn CapturedOp>>) -> Self {
        Self(Arc::new(ops.into_iter().map(|op| (op.name(), op)).collect()))
    }

    /// Floating-point operations of one of them.
    pub(super) fn flops(&self, op: &CustomOpIr) -> u64 {
        let spec = |tensor: &TensorIr| (tensor.shape.clone(), tensor.dtype);
        let specs = |tensors: &[TensorIr]| tensors.iter().map(spec).collect::<Vec<_>>();
        self.0.get(&op.id).map_or(0, |custom| custom.flops(&specs(&op.inputs), &specs(&op.outputs)))
    }

    /// The handlers that an interpreter calls. The first one that fails stores its error, and sets no outputs.
    pub(super) fn registry<B: BackendIr>(&self, failed: &Arc<OnceLock<ProgramError>>) -> CustomOpRegistry<B>
    where
        DispatchTensor: DispatchKindConversion<B>,
    {
        let mut registry = CustomOpRegistry::new();
        for (name, op) in self.0.iter() {
            let (op, failed) = (op.clone(), failed.clone());
            registry.register(name, move |handles, ir, _| {
                let inputs = ir.inputs.iter().map(|tensor| read::<B>(handles, tensor)).collect();
                if let Err(error) = give::<B>(handles, ir, op.run(inputs)) {
                    // A program ends at the first error.
                    let _ = failed.set(error);
                }
            });
        }
        registry
    }
}

fn read<B: BackendIr>(handles: &mut HandleContainer<B::Handle>, tensor: &TensorIr) -> DispatchTensor
where
    DispatchTensor: DispatchKindConversion<B>,
{
    <DispatchTensor as DispatchKindConversion<B>>::from_backend(match tensor.dtype {
        dtype if dtype.is_bool() => BackendTensor::Bool(handles.get_bool_tensor::<B>(tensor)),
        dtype if dtype.is_int() || dtype.is_uint() => BackendTensor::Int(handles.get_int_tensor::<B>(tensor)),
        _ => BackendTensor::Float(handles.get_float_tensor::<B>(tensor)),
    })
}

/// Gives an operation's outputs to the interpreter, if they match its declaration.
fn give<B: BackendIr>(
    handles: &mut HandleContainer<B::Handle>,
    ir: &CustomOpIr,
    outputs: Vec<DispatchTensor>,
) -> Result<(), ProgramError>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    let differs = |expected, got| Err(ProgramError::Operation { operation: ir.id.clone(), expected, got });
    if outputs.len() != ir.outputs.len() {
        return differs(format!("{} output(s)", ir.outputs.len()), format!("{}", outputs.len()));
    }
    for (place, (tensor, output)) in ir.outputs.iter().zip(outputs).enumerate() {
        if !is_like(tensor, &output) {
            let got = spec(&output.shape(), output.dtype());
            return differs(format!("{} as output {place}", spec(&tensor.shape, tensor.dtype)), got);
        }
        match <DispatchTensor as DispatchKindConversion<B>>::try_into_backend(output) {
            Ok(BackendTensor::Float(output)) => handles.register_float_tensor::<B>(&tensor.id, output),
            Ok(BackendTensor::Int(output)) => handles.register_int_tensor::<B>(&tensor.id, output),
            Ok(BackendTensor::Bool(output)) => handles.register_bool_tensor::<B>(&tensor.id, output),
            Ok(other) => {
                return differs(format!("a plain tensor as output {place}"), format!("a {} one", other.name()));
            }
            Err(reason) => return differs(format!("output {place} on the stage's own device"), reason),
        }
    }
    Ok(())
}

/// Returns true if a tensor has the shape and the element type of a program's; devices store booleans in types of
/// their own.
pub(crate) fn is_like(expected: &TensorIr, tensor: &DispatchTensor) -> bool {
    let (dtype, is_bool) = (tensor.dtype(), |dtype: DType| dtype.is_bool());
    tensor.shape() == expected.shape && (dtype == expected.dtype || is_bool(dtype) && is_bool(expected.dtype))
}

pub(crate) fn spec(shape: &Shape, dtype: DType) -> String {
    format!("{:?} of {dtype:?}", shape.to_vec())
}

/// The capture that a thread runs.
struct Open {
    device: Device,
    ops: CustomOps,
}

thread_local! {
    static OPEN: RefCell<Option<Open>> = const { RefCell::new(None) };
}

/// The device whose stage this thread is capturing; `None` outside a capture of a stage.
pub fn captured_for() -> Option<Device> {
    OPEN.with_borrow(|open| open.as_ref().map(|open| open.device.clone()))
}

/// Runs a capture for a device, and returns its result with the custom operations that it recorded.
pub(crate) fn capturing<T>(device: &Device, capture: impl FnOnce() -> T) -> (T, CustomOps) {
    let open = Open { device: device.clone(), ops: CustomOps::default() };
    let (given, open) = scoped(&OPEN, Some(open), capture);
    (given, open.map(|open| open.ops).unwrap_or_default())
}

/// Records an operation as one, and returns its outputs. Outside a capture of a stage, and for an operation without
/// inputs, it records nothing and returns `None`.
///
/// Call it in an extension's implementation for `Capture`, if the device that [`captured_for`] returns has a kernel
/// for the operation.
pub fn record_op(op: impl CapturedOp, inputs: Vec<FloatTensor<Capture>>) -> Option<Vec<FloatTensor<Capture>>> {
    record(Arc::new(op), inputs)
}

/// Like [`record_op`].
pub(crate) fn record(op: Arc<dyn CapturedOp>, inputs: Vec<FloatTensor<Capture>>) -> Option<Vec<FloatTensor<Capture>>> {
    let client = inputs.first()?.client.clone();
    let name = op.name();
    OPEN.with_borrow_mut(|open| {
        let ops = Arc::make_mut(&mut open.as_mut()?.ops.0);
        ops.entry(name.clone()).or_insert_with(|| op.clone());
        Some(())
    })?;
    let specs: Vec<_> = inputs.iter().map(|input| (input.shape(), input.dtype())).collect();
    let output = |(shape, dtype): (Shape, DType)| {
        let id = client.create_empty_handle();
        (TensorIr::uninit(id, shape.clone(), dtype), RouterTensor::new(id, shape, dtype, client.clone()))
    };
    let (outputs, tensors): (Vec<_>, Vec<_>) = op.outputs(&specs).into_iter().map(output).unzip();
    let inputs = inputs.into_iter().map(RouterTensor::into_ir).collect();
    client.register_op(OperationIr::Custom(CustomOpIr { id: name, inputs, outputs, scalars: Vec::new() }));
    Some(tensors)
}
