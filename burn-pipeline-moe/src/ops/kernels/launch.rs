//! Helpers for launching kernels: element types, sizes and new tensors.

use crate::ops::specs::accumulator;
use burn::backend::cubecl::dtype_to_storage_type;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, DType, TensorMetadata};
use burn::tensor::Shape;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::{empty_device_contiguous_dtype, full_device_dtype};
use burn_cubecl::tensor::CubeTensor;
use cubecl::calculate_cube_count_elemwise;
use cubecl::ir::{AddressType, ElemType};
use cubecl::prelude::{CubeCount, CubeDim, InputScalar};

/// Launches a kernel with `units` units on the device of the tensor `on`, with addresses that cover the tensors `over`.
/// For a kernel over vectors, `by` gives their size. The kernel's tensors follow, then its other arguments.
macro_rules! launch {
    ($kernel:ident $(by $vector:ident)?, $units:expr, on $on:ident, over [$($wide:ident),*],
     [$($tensor:expr),*], [$($other:expr),*]) => {{
        let (count, dim) = crate::ops::kernels::launch::grid(&$on, $units);
        let address = crate::ops::kernels::launch::address(&[$(&$wide),*]);
        $kernel::launch(
            &$on.client, count, dim, address, $($vector,)? $($tensor.clone().into_tensor_arg(),)* $($other,)*
        )
    }};
}
pub(super) use launch;

/// How many numbers one unit adds.
pub(super) const PART: usize = 64;

/// The element type of the integers that kernels read and write.
pub(super) const INT: DType = DType::I32;

/// The types that a kernel over floats is compiled for: that of tensors and that of sums.
pub(super) fn types(dtype: DType) -> [ElemType; 2] {
    [dtype_to_storage_type(dtype), dtype_to_storage_type(accumulator(dtype))]
}

/// An uninitialized tensor on the device of another.
pub(super) fn empty<const D: usize>(like: &CubeTensor, shape: [usize; D], dtype: DType) -> CubeTensor {
    empty_device_contiguous_dtype(like.client.clone(), like.device.clone(), Shape::new(shape), dtype)
}

/// A tensor filled with one integer, on the device of another.
pub(super) fn filled<const D: usize>(like: &CubeTensor, shape: [usize; D], value: usize) -> CubeTensor {
    let value = InputScalar::new(value as i64, dtype_to_storage_type(INT));
    full_device_dtype(like.client.clone(), Shape::new(shape), like.device.clone(), value, INT)
}

/// A grid of enough cubes for `units` units.
///
/// # Panics
/// Panics if the device does not compute in the tensor's element type; the kernel would silently give wrong values.
pub(super) fn grid(like: &CubeTensor, units: usize) -> (CubeCount, CubeDim) {
    assert!(
        CubeBackend::supports_dtype(&like.device, like.dtype),
        "{:?} does not compute in {:?}: use f32 there; `Device::supports_dtype` says what a device computes in",
        like.device,
        like.dtype
    );
    let dim = CubeDim::new(&like.client, units);
    (calculate_cube_count_elemwise(&like.client, units, dim), dim)
}

/// The address type that covers all of these tensors.
pub(super) fn address(tensors: &[&CubeTensor]) -> AddressType {
    tensors.iter().map(|tensor| tensor.required_address_type()).max().unwrap_or_default()
}

/// The largest vector that a unit can move at once and that divides this width.
pub(super) fn vector_size(like: &CubeTensor, width: usize) -> usize {
    let sizes = like.client.io_optimized_vector_sizes(like.dtype.size());
    sizes.filter(|&size| width.is_multiple_of(size)).max().unwrap_or(1)
}

/// Contiguous integers of the type that kernels read.
pub(super) fn integers(tensor: IntTensor<CubeBackend>) -> CubeTensor {
    use burn::backend::ops::IntTensorOps;
    let tensor = match tensor.dtype() {
        INT => tensor,
        _ => CubeBackend::int_cast(tensor, burn::tensor::IntDType::I32),
    };
    into_contiguous(tensor)
}

/// Contiguous floats of a wanted type.
pub(super) fn floats(tensor: FloatTensor<CubeBackend>, dtype: DType) -> CubeTensor {
    use burn::backend::ops::FloatTensorOps;
    let tensor = match tensor.dtype() == dtype {
        true => tensor,
        false => CubeBackend::float_cast(tensor, dtype.into()),
    };
    into_contiguous(tensor)
}
