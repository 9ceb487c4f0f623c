//! A tensor whose rank and kind are known only at run time: what crosses a stage boundary.
//!
//! Guarantees: wrapping and unwrapping moves a handle, never data. A wrong kind or rank is an error that states the
//! expected and the received one, not a panic.

use burn::backend::ops::{BoolTensorOps, FloatTensorOps, IntTensorOps};
use burn::backend::{AutodiffBackend, Dispatch, DispatchTensor, TensorMetadata};
use burn::tensor::kind::Basic;
use burn::tensor::{DType, Device, GradientCheckpointingStrategy, Shape, Slice, Tensor, TensorData};
use std::any::TypeId;
use std::hash::{DefaultHasher, Hash, Hasher};

/// The most elements whose squares one Burn sum adds. From 2^22 elements on, Flex adds in several threads, in an
/// order that depends on which thread is free first.
const SUMMED_AT_ONCE: usize = (1 << 22) - 1;

/// Float, int or bool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum TensorKind {
    /// Floating point, of any width.
    Float,
    /// Integer, signed or not.
    Int,
    /// Boolean.
    Bool,
}

impl TensorKind {
    /// The kind of tensors with these elements.
    pub fn of(dtype: DType) -> Self {
        match dtype {
            dtype if dtype.is_bool() => TensorKind::Bool,
            dtype if dtype.is_int() || dtype.is_uint() => TensorKind::Int,
            _ => TensorKind::Float,
        }
    }

    /// The kind of Burn's type `K`, which is `Float`, `Int` or `Bool`.
    pub(super) fn of_marker<K: Basic + 'static>() -> Self {
        match TypeId::of::<K>() {
            id if id == TypeId::of::<burn::tensor::Float>() => TensorKind::Float,
            id if id == TypeId::of::<burn::tensor::Int>() => TensorKind::Int,
            _ => TensorKind::Bool,
        }
    }
}

impl std::fmt::Display for TensorKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            TensorKind::Float => "float",
            TensorKind::Int => "int",
            TensorKind::Bool => "bool",
        })
    }
}

/// Returns true if this is a CubeCL device. Such devices run operations asynchronously.
pub(crate) fn is_cubecl(device: &Device) -> bool {
    #[cfg(feature = "cubecl-backend")]
    return matches!(device.clone().inner().as_dispatch(), burn::backend::DispatchDevice::Cube(_));
    #[cfg(not(feature = "cubecl-backend"))]
    {
        let _ = device;
        false
    }
}

/// Calls the function of Burn's dispatch layer for a kind of tensor.
macro_rules! by_kind {
    ($kind:expr, $float:ident | $int:ident | $bool:ident($($argument:expr),*)) => {
        match $kind {
            TensorKind::Float => Dispatch::$float($($argument),*),
            TensorKind::Int => Dispatch::$int($($argument),*),
            TensorKind::Bool => Dispatch::$bool($($argument),*),
        }
    };
}

/// A tensor of any rank, kind and device.
#[derive(Clone, Debug)]
pub struct AnyTensor(DispatchTensor);

impl AnyTensor {
    /// Wraps a Burn tensor.
    pub fn new<const D: usize, K: Basic>(tensor: Tensor<D, K>) -> Self {
        Self(tensor.into_dispatch())
    }

    /// Wraps a tensor of Burn's dispatch layer.
    pub fn from_dispatch(tensor: DispatchTensor) -> Self {
        Self(tensor)
    }

    /// Copies elements from the host to a device, without autodiff. They keep their type, except that booleans get the
    /// device's: their values are the same in all boolean types.
    pub fn from_data(data: TensorData, device: &Device) -> Self {
        let plain = device.clone().inner();
        let data = match TensorKind::of(data.dtype()) {
            TensorKind::Bool => data.convert_dtype(plain.settings().bool_dtype.into()),
            TensorKind::Float | TensorKind::Int => data,
        };
        let (kind, target) = (TensorKind::of(data.dtype()), plain.as_dispatch());
        Self(by_kind!(kind, float_from_data | int_from_data | bool_from_data(data, target)))
    }

    /// Unwraps the tensor of Burn's dispatch layer.
    pub fn into_dispatch(self) -> DispatchTensor {
        self.0
    }

    /// Borrows the tensor of Burn's dispatch layer.
    pub fn as_dispatch(&self) -> &DispatchTensor {
        &self.0
    }

    /// Unwraps a tensor of rank `D` and kind `K`.
    ///
    /// # Errors
    /// Returns the tensor's own kind and rank if they differ.
    pub fn into_tensor<const D: usize, K: Basic + 'static>(self) -> Result<Tensor<D, K>, (TensorKind, usize)> {
        match (self.kind(), self.rank()) {
            (kind, rank) if kind == TensorKind::of_marker::<K>() && rank == D => Ok(Tensor::from_dispatch(self.0)),
            other => Err(other),
        }
    }

    /// Float, int or bool.
    pub fn kind(&self) -> TensorKind {
        TensorKind::of(self.0.dtype())
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.0.shape().num_dims()
    }

    /// Shape.
    pub fn shape(&self) -> Shape {
        self.0.shape()
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.0.dtype()
    }

    /// The size of its elements in bytes.
    pub fn bytes(&self) -> usize {
        self.shape().num_elements() * self.dtype().size()
    }

    /// The device that holds it.
    pub fn device(&self) -> Device {
        Device::new(self.0.device())
    }

    /// The same tensor without autodiff.
    pub fn inner(self) -> Self {
        if !self.device_is_autodiff() {
            return self;
        }
        Self(by_kind!(self.kind(), inner | int_inner | bool_inner(self.0)))
    }

    fn device_is_autodiff(&self) -> bool {
        self.0.autodiff != burn::backend::DispatchAutodiffContext::Disabled
    }

    /// The same tensor as a leaf of a new graph; if `tracked`, its gradient is computed (floats only).
    pub fn leaf(self, strategy: GradientCheckpointingStrategy, tracked: bool) -> Self {
        let plain = self.inner();
        let mut tensor = by_kind!(plain.kind(), from_inner | int_from_inner | bool_from_inner(plain.0));
        tensor.autodiff = burn::backend::DispatchAutodiffContext::Enabled(strategy);
        let float = TensorKind::of(tensor.dtype()) == TensorKind::Float;
        Self(if float && tracked { Dispatch::float_set_require_grad(tensor, true) } else { tensor })
    }

    /// Returns true if its graph leads to anything that needs a gradient.
    pub fn is_tracked(&self) -> bool {
        self.kind() == TensorKind::Float && self.device_is_autodiff() && Dispatch::is_tracked(&self.0)
    }

    /// Zeros (false for booleans) of this kind, element type and device, without autodiff.
    pub fn zeros(&self, shape: Shape) -> Self {
        let (device, dtype) = (self.device().inner(), self.dtype());
        Self(by_kind!(self.kind(), float_zeros | int_zeros | bool_zeros(shape, device.as_dispatch(), dtype.into())))
    }

    /// The same tensor on another device; the handle itself if it is already there.
    pub fn to_device(self, device: &Device) -> Self {
        if &self.device() == device {
            return self;
        }
        // Burn hands booleans to another backend in a representation that it may not support.
        if self.kind() == TensorKind::Bool
            && let Ok(data) = self.to_data()
        {
            return Self::from_data(data, device);
        }
        let target = device.as_dispatch();
        Self(by_kind!(self.kind(), float_to_device | int_to_device | bool_to_device(self.0, target)))
    }

    /// The same elements for another thread: copied on CubeCL devices, else the handle itself. See
    /// `link/hand_over.rs`.
    pub(crate) fn unshared(self) -> Self {
        if self.is_on_cubecl() { self.copied() } else { self }
    }

    /// The same elements in memory of their own; on Flex, where flipping no dimension copies nothing, the handle
    /// itself.
    pub(crate) fn copied(self) -> Self {
        // Flipping no dimension is the one operation that copies tensors of every kind and shape, including one
        // element.
        Self(by_kind!(self.kind(), float_flip | int_flip | bool_flip(self.0, &[])))
    }

    /// The same elements in storage of their own size: a view keeps the whole tensor that it is a view of.
    pub(crate) fn compact(self) -> Self {
        if self.is_on_cubecl() {
            return self.copied();
        }
        let device = self.device();
        // If the elements cannot be read, keep the handle: the next reader reports why.
        self.to_data().map_or(self, |data| Self::from_data(data, &device))
    }

    pub(super) fn is_on_cubecl(&self) -> bool {
        is_cubecl(&self.device())
    }

    /// The part `[start, end)` along a dimension.
    pub fn narrow(self, dim: usize, start: usize, end: usize) -> Self {
        let shape = self.shape();
        let whole = |d: usize| if d == dim { Slice::from(start..end) } else { Slice::from(0..shape[d]) };
        let slices: Vec<Slice> = (0..shape.num_dims()).map(whole).collect();
        Self(by_kind!(self.kind(), float_slice | int_slice | bool_slice(self.0, &slices)))
    }

    /// The same elements in another shape, which must have the same number of elements.
    pub fn reshape(self, shape: Shape) -> Self {
        Self(by_kind!(self.kind(), float_reshape | int_reshape | bool_reshape(self.0, shape)))
    }

    /// Returns true if the two can be joined along a dimension, or added if there is none.
    pub(crate) fn joins(&self, other: &Self, dim: Option<usize>) -> bool {
        let (own, theirs) = (self.shape(), other.shape());
        self.dtype() == other.dtype()
            && own.num_dims() == theirs.num_dims()
            && dim.is_none_or(|dim| dim < own.num_dims())
            && (0..own.num_dims()).all(|at| Some(at) == dim || own[at] == theirs[at])
    }

    /// Joins pieces of one kind along a dimension; `None` if there are no pieces.
    pub fn cat(pieces: Vec<AnyTensor>, dim: usize) -> Option<Self> {
        let kind = pieces.first()?.kind();
        let pieces: Vec<DispatchTensor> = pieces.into_iter().map(|t| t.0).collect();
        Some(Self(by_kind!(kind, float_cat | int_cat | bool_cat(pieces, dim))))
    }

    /// The sum of two float tensors of one shape. Reuses the left one's storage if nobody else holds it.
    pub fn plus(self, other: Self) -> Self {
        Self(Dispatch::float_add(self.0, other.0))
    }

    /// The sum of float tensors of one shape and type, added in their order; `None` if there are none. Half precision
    /// is added in f32 and rounded once.
    pub(crate) fn sum(all: impl IntoIterator<Item = Self>) -> Option<Self> {
        let mut all = all.into_iter();
        let first = all.next()?;
        let dtype = first.dtype();
        Some(all.fold(first.widened(), |sum, one| sum.plus(one.widened())).cast(dtype))
    }

    /// Multiplies each element by a factor, reusing the storage if nobody else holds it. Half precision, in which
    /// small factors would become 0, is multiplied in f32.
    pub fn scale(self, factor: f64) -> Self {
        let dtype = self.dtype();
        Self(Dispatch::float_mul_scalar(self.widened().0, factor.into())).cast(dtype)
    }

    /// The type with enough range and digits for sums, squares and factors of floats of this type: f32 for half
    /// precision, as in Burn's own gradient clipping, else the type itself.
    pub(crate) fn widest(dtype: DType) -> DType {
        if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype }
    }

    /// The same elements in [that type](Self::widest).
    pub(crate) fn widened(self) -> Self {
        let dtype = Self::widest(self.dtype());
        self.cast(dtype)
    }

    /// The same float elements in another float type; the handle itself if it is the same type.
    pub(crate) fn cast(self, dtype: DType) -> Self {
        if self.dtype() == dtype { self } else { Self(Dispatch::float_cast(self.0, dtype.into())) }
    }

    /// The sum of squares, read back to the host (waits for the device). It is the same in every run, even with
    /// several compute threads. Half precision is squared and added in f32.
    ///
    /// # Errors
    /// Returns the device's message if it reports a failure.
    pub fn squared_norm(&self) -> Result<f64, String> {
        let elements = self.shape().num_elements();
        let squares = |part: Self| {
            let part = part.widened().0;
            Self(Dispatch::float_sum(Dispatch::float_mul(part.clone(), part)))
        };
        let mut sums = match elements <= SUMMED_AT_ONCE {
            true => vec![squares(self.clone())],
            false => {
                let flat = Self(Dispatch::float_reshape(self.0.clone(), Shape::new([elements])));
                let starts = (0..elements).step_by(SUMMED_AT_ONCE);
                let part = |start| flat.clone().narrow(0, start, elements.min(start + SUMMED_AT_ONCE));
                starts.map(|start| squares(part(start))).collect()
            }
        };
        let sums = if sums.len() == 1 { sums.pop() } else { Self::cat(sums, 0) };
        let sums = sums.ok_or("the sums of squares cannot be joined")?.into_data()?;
        Ok(sums.iter::<f64>().sum())
    }

    /// Hashes its shape and its elements' bits (waits for the device).
    ///
    /// # Errors
    /// Returns the device's message if it reports a failure.
    pub(crate) fn digest(&self) -> Result<u64, String> {
        let mut hasher = DefaultHasher::new();
        let data = self.to_data()?;
        (data.shape().to_vec(), data.as_bytes()).hash(&mut hasher);
        Ok(hasher.finish())
    }

    /// Adds its element type, shape and elements' bits to a checksum (waits for the device).
    ///
    /// # Errors
    /// Returns the device's message if it reports a failure.
    pub(crate) fn add_to(&self, checksum: &mut crc32fast::Hasher) -> Result<(), String> {
        let data = self.to_data()?;
        checksum.update(format!("{:?}{:?}", data.dtype(), data.shape()).as_bytes());
        checksum.update(data.as_bytes());
        Ok(())
    }

    /// Copies its elements to the host (waits for the device).
    ///
    /// # Errors
    /// Returns the device's message if it reports a failure.
    pub fn to_data(&self) -> Result<TensorData, String> {
        self.clone().into_data()
    }

    /// Moves its elements to the host (waits for the device); copies nothing if the host alone holds them.
    ///
    /// # Errors
    /// Returns the device's message if it reports a failure.
    pub fn into_data(self) -> Result<TensorData, String> {
        let read = match self.kind() {
            TensorKind::Float => burn::tensor::try_read_sync(Dispatch::float_into_data(self.0)),
            TensorKind::Int => burn::tensor::try_read_sync(Dispatch::int_into_data(self.0)),
            TensorKind::Bool => burn::tensor::try_read_sync(Dispatch::bool_into_data(self.0)),
        };
        read.ok_or("the device cannot be read without waiting")?.map_err(|e| e.to_string())
    }
}
