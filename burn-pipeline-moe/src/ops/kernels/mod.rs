//! The operations as CubeCL kernels.
//!
//! What they have in common: tensors are made contiguous first; floats are read in their own type and accumulated in
//! f32 (f64 for f64); integers are i32; sums over many tokens are taken in parts of [`PART`], then over the parts, so
//! they need neither atomics nor barriers and come out the same every time. One unit computes one number or one
//! vector; units beyond the last leave at once.

#![allow(clippy::too_many_arguments, reason = "a kernel is told every size that it needs")]

mod grouped;
mod inject;
mod place;
mod route;
mod rows;
mod z_loss;

use super::{InjectedWeights, MoeOps, RouteOptions, accumulator};
use burn::backend::cubecl::dtype_to_storage_type;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{DType, TensorMetadata};
use burn::tensor::Shape;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::{empty_device_contiguous_dtype, full_device_dtype};
use burn_cubecl::tensor::CubeTensor;
use cubecl::calculate_cube_count_elemwise;
use cubecl::ir::{AddressType, ElemType};
use cubecl::prelude::{CubeCount, CubeDim, InputScalar};

/// Numbers that one unit adds up.
const PART: usize = 64;

/// Element type of the integers that kernels read and write.
const INT: DType = DType::I32;

/// What kernels over floats are made for: the type of tensors, and of sums.
fn types(dtype: DType) -> [ElemType; 2] {
    [dtype_to_storage_type(dtype), dtype_to_storage_type(accumulator(dtype))]
}

/// An uninitialized tensor on the device of another.
fn empty<const D: usize>(like: &CubeTensor, shape: [usize; D], dtype: DType) -> CubeTensor {
    empty_device_contiguous_dtype(like.client.clone(), like.device.clone(), Shape::new(shape), dtype)
}

/// A tensor of one integer over and over, on the device of another.
fn filled<const D: usize>(like: &CubeTensor, shape: [usize; D], value: usize) -> CubeTensor {
    let value = InputScalar::new(value as i64, dtype_to_storage_type(INT));
    full_device_dtype(like.client.clone(), Shape::new(shape), like.device.clone(), value, INT)
}

/// Enough cubes for so many units.
fn grid(like: &CubeTensor, units: usize) -> (CubeCount, CubeDim) {
    let dim = CubeDim::new(&like.client, units);
    (calculate_cube_count_elemwise(&like.client, units, dim), dim)
}

/// The width of addresses that reaches all of these.
fn address(tensors: &[&CubeTensor]) -> AddressType {
    tensors.iter().map(|tensor| tensor.required_address_type()).max().unwrap_or_default()
}

/// How many numbers of rows of this width a unit moves at once.
fn vector_size(like: &CubeTensor, width: usize) -> usize {
    let sizes = like.client.io_optimized_vector_sizes(like.dtype.size());
    sizes.filter(|&size| width.is_multiple_of(size)).max().unwrap_or(1)
}

/// Contiguous integers of the type that kernels read.
fn integers(tensor: IntTensor<CubeBackend>) -> CubeTensor {
    use burn::backend::ops::IntTensorOps;
    let tensor = match tensor.dtype() {
        INT => tensor,
        _ => CubeBackend::int_cast(tensor, burn::tensor::IntDType::I32),
    };
    into_contiguous(tensor)
}

/// Contiguous floats of a wanted type.
fn floats(tensor: FloatTensor<CubeBackend>, dtype: DType) -> CubeTensor {
    use burn::backend::ops::FloatTensorOps;
    let tensor = match tensor.dtype() == dtype {
        true => tensor,
        false => CubeBackend::float_cast(tensor, dtype.into()),
    };
    into_contiguous(tensor)
}

impl MoeOps for CubeBackend {
    fn injected_gradients(
        scale: FloatTensor<Self>,
        weights: InjectedWeights,
        dtype: DType,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        inject::gradients(into_contiguous(scale), weights, dtype)
    }

    fn z_loss(logits: FloatTensor<Self>) -> (FloatTensor<Self>, FloatTensor<Self>) {
        z_loss::forward(into_contiguous(logits))
    }

    fn z_loss_backward(
        logits: FloatTensor<Self>,
        log_sums: FloatTensor<Self>,
        of_loss: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        let dtype = logits.dtype;
        z_loss::backward(into_contiguous(logits), floats(log_sums, accumulator(dtype)), floats(of_loss, dtype))
    }

    fn route(
        logits: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        options: RouteOptions,
    ) -> (FloatTensor<Self>, IntTensor<Self>, IntTensor<Self>) {
        let dtype = logits.dtype;
        route::forward(into_contiguous(logits), floats(bias, dtype), options)
    }

    fn route_backward(
        logits: FloatTensor<Self>,
        experts: IntTensor<Self>,
        of_row: FloatTensor<Self>,
        options: RouteOptions,
    ) -> FloatTensor<Self> {
        let dtype = logits.dtype;
        route::backward(into_contiguous(logits), integers(experts), floats(of_row, dtype), options)
    }

    fn place(
        experts: IntTensor<Self>,
        load: IntTensor<Self>,
        capacity: usize,
    ) -> (IntTensor<Self>, IntTensor<Self>, IntTensor<Self>) {
        place::forward(integers(experts), load.shape()[0], capacity)
    }

    fn permute(
        tokens: FloatTensor<Self>,
        choice_of_row: IntTensor<Self>,
        _row_of_choice: IntTensor<Self>,
    ) -> FloatTensor<Self> {
        rows::spread(into_contiguous(tokens), None, integers(choice_of_row))
    }

    fn permute_backward(
        of_rows: FloatTensor<Self>,
        row_of_choice: IntTensor<Self>,
        tokens: usize,
    ) -> FloatTensor<Self> {
        rows::collect(into_contiguous(of_rows), None, integers(row_of_choice), tokens)
    }

    fn unpermute(
        rows: FloatTensor<Self>,
        gates: FloatTensor<Self>,
        _choice_of_row: IntTensor<Self>,
        row_of_choice: IntTensor<Self>,
    ) -> FloatTensor<Self> {
        let (tokens, gates) = (gates.shape()[0], floats(gates, rows.dtype));
        rows::collect(into_contiguous(rows), Some(gates), integers(row_of_choice), tokens)
    }

    fn unpermute_rows_backward(
        of_tokens: FloatTensor<Self>,
        gates: FloatTensor<Self>,
        choice_of_row: IntTensor<Self>,
    ) -> FloatTensor<Self> {
        let gates = floats(gates, of_tokens.dtype);
        rows::spread(into_contiguous(of_tokens), Some(gates), integers(choice_of_row))
    }

    fn unpermute_gates_backward(
        of_tokens: FloatTensor<Self>,
        rows: FloatTensor<Self>,
        row_of_choice: IntTensor<Self>,
    ) -> FloatTensor<Self> {
        let rows = floats(rows, of_tokens.dtype);
        rows::gates_backward(into_contiguous(of_tokens), rows, integers(row_of_choice))
    }

    fn grouped_matmul(
        rows: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        offsets: IntTensor<Self>,
    ) -> FloatTensor<Self> {
        let weight = floats(weight, rows.dtype);
        grouped::forward(into_contiguous(rows), weight, integers(offsets))
    }

    fn grouped_matmul_input(
        of_output: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        offsets: IntTensor<Self>,
    ) -> FloatTensor<Self> {
        let weight = floats(weight, of_output.dtype);
        grouped::input(into_contiguous(of_output), weight, integers(offsets))
    }

    fn grouped_matmul_weight(
        rows: FloatTensor<Self>,
        of_output: FloatTensor<Self>,
        offsets: IntTensor<Self>,
    ) -> FloatTensor<Self> {
        let of_output = floats(of_output, rows.dtype);
        grouped::weight(into_contiguous(rows), of_output, integers(offsets))
    }
}
