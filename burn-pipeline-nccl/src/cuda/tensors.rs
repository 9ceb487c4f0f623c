//! Burn's tensors on a CUDA device, and the memory behind them.
//!
//! Guarantees: elements are sent in row order, whatever the tensor's layout (rows of CUDA tensors may be padded and
//! views strided; both are copied first). While a tensor is pinned, its memory is neither freed, nor moved, nor
//! written in place by others.
//!
//! 1. A tensor becomes CubeCL's own ([`into_cube`]); with fusion, the operations queued for it run first.
//! 2. [`Pinned`] gets the memory from CubeCL, which makes the calling thread's queue wait for the one that made the
//!    tensor. It holds the resource, so the memory stays in place, and the tensor, so CubeCL does not consider it
//!    unused and write over it.
//! 3. A received tensor becomes Burn's again ([`from_cube`]); with fusion, it is registered there.

use super::error::NcclError;
use burn::tensor::{Bytes, DType, Shape};
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{Cube, CubeDevice};
use burn_dispatch::{BackendTensor, DispatchDevice, DispatchKindConversion, DispatchTensor};
use burn_pipeline::payload::{AnyTensor, TensorKind, cube_tensor};
use cubecl_runtime::runtime::Runtime;
use cubecl_runtime::server::ServerStorage;
use cubecl_runtime::storage::{ComputeStorage, ManagedResource};
use std::ffi::c_void;

type CudaServer = <cubecl::cuda::CudaRuntime as Runtime>::Server;
type CudaMemory = <<CudaServer as ServerStorage>::Storage as ComputeStorage>::Resource;

/// The CUDA device of a Burn device, and its number.
pub(crate) fn cuda_device(device: &burn::tensor::Device) -> Result<(CubeDevice, usize), NcclError> {
    let plain = device.clone().inner();
    match plain.as_dispatch() {
        DispatchDevice::Cube(CubeDevice::Cuda(cuda)) => Ok((CubeDevice::Cuda(cuda.clone()), cuda.index)),
        other => Err(NcclError::NoCudaDevice { device: format!("{other:?}") }),
    }
}

/// Returns true if a tensor is on this device.
pub(crate) fn is_on(tensor: &AnyTensor, device: &burn::tensor::Device) -> bool {
    tensor.device().inner() == *device
}

/// Converts to CubeCL's tensor, with contiguous elements.
pub(crate) fn into_cube(tensor: AnyTensor) -> Result<CubeTensor, NcclError> {
    let refused = || NcclError::Memory { error: "it is quantised, or on another device".to_owned() };
    // Not `into_contiguous_aligned`, which leaves rows padded.
    Ok(burn_cubecl::kernel::into_contiguous(cube_tensor(tensor).ok_or_else(refused)?))
}

/// Converts to Burn's tensor.
pub(crate) fn from_cube(kind: TensorKind, tensor: CubeTensor) -> AnyTensor {
    let tensor = match kind {
        TensorKind::Float => BackendTensor::Float(registered(tensor)),
        TensorKind::Int => BackendTensor::Int(registered(tensor)),
        TensorKind::Bool => BackendTensor::Bool(registered(tensor)),
    };
    AnyTensor::from_dispatch(<DispatchTensor as DispatchKindConversion<Cube>>::from_backend(tensor))
}

/// Allocates memory for a tensor, contiguous, with arbitrary elements.
pub(crate) fn empty(device: &CubeDevice, dtype: DType, shape: &[usize]) -> CubeTensor {
    let (client, shape) = (device.client(), Shape::from(shape.to_vec()));
    burn_cubecl::ops::numeric::empty_device_contiguous_dtype(client, device.clone(), shape, dtype)
}

/// A tensor as Burn's backend has it: with fusion, registered there.
#[cfg(not(feature = "fusion"))]
fn registered(tensor: CubeTensor) -> CubeTensor {
    tensor
}

#[cfg(feature = "fusion")]
fn registered(tensor: CubeTensor) -> burn_fusion::FusionTensor<burn_cubecl::fusion::FusionCubeRuntime> {
    use burn_cubecl::CubeBackend;
    use burn_fusion::NoOp;
    use burn_ir::{InitOperationIr, OperationIr, OperationOutput};

    let client = burn_fusion::get_client::<CubeBackend>(&tensor.device);
    let (shape, dtype) = (tensor.meta.shape().clone(), tensor.dtype);
    let handle: burn_cubecl::fusion::CubeFusionHandle = tensor.into();
    let created = InitOperationIr::create(shape, dtype, || client.register_tensor_handle(handle));
    let operation = OperationIr::Init(created);
    client.register(burn_fusion::stream::StreamId::current(), operation, NoOp::<CubeBackend>::new()).output()
}

/// Memory on the GPU, by its address and size. It is valid as long as its [`Pinned`] lives.
#[derive(Clone, Copy)]
pub(crate) struct Area {
    pub(crate) pointer: *mut c_void,
    pub(crate) bytes: usize,
}

/// A tensor whose memory is neither moved nor changed by others until this is dropped.
pub(crate) struct Pinned {
    resource: ManagedResource<CudaMemory>,
    /// While this is held, CubeCL does not write over the memory in place.
    tensor: CubeTensor,
}

impl std::fmt::Debug for Pinned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pinned({:?} of {:?})", self.tensor.meta.shape(), self.tensor.dtype)
    }
}

impl Pinned {
    /// Pins a contiguous tensor, as returned by [`into_cube`] and [`empty`]. When this returns, the kernels that
    /// make it are in the GPU's queues, and this thread's queue waits for them.
    pub(crate) fn new(tensor: CubeTensor) -> Result<Self, NcclError> {
        let found = tensor.client.get_resource::<CudaServer>(tensor.handle.clone());
        let resource = found.map_err(|error| NcclError::Memory { error: format!("{error:?}") })?;
        let pinned = Self { resource, tensor };
        let (held, needed) = (pinned.resource.resource().size, pinned.area().bytes as u64);
        match held < needed {
            true => Err(NcclError::Memory { error: format!("{needed} bytes are sent, but the memory has {held}") }),
            false => Ok(pinned),
        }
    }

    /// Writes to the memory, in the order of this thread's queue. When this returns, the write is in the queue.
    pub(crate) fn write(&self, bytes: &[u8]) -> Result<(), NcclError> {
        let client = &self.tensor.client;
        client.write(&self.tensor.handle, Bytes::from_bytes_vec(bytes.to_vec()));
        // CubeCL's thread does its work in order.
        let written = client.get_resource::<CudaServer>(self.tensor.handle.clone());
        written.map(drop).map_err(|error| NcclError::Memory { error: format!("{error:?}") })
    }

    /// The memory of the elements. The tensor may have more.
    pub(crate) fn area(&self) -> Area {
        let bytes = self.tensor.meta.shape().num_elements() * self.tensor.dtype.size();
        Area { pointer: self.resource.resource().ptr as *mut c_void, bytes }
    }

    /// Returns the tensor, and a value that keeps its memory pinned until it is dropped. Others may write to the
    /// tensor in place.
    pub(crate) fn into_parts(self) -> (CubeTensor, Held) {
        (self.tensor, Held(self.resource))
    }
}

/// Keeps a tensor's memory in place.
pub(crate) struct Held(#[allow(dead_code, reason = "it is kept, never read")] ManagedResource<CudaMemory>);
