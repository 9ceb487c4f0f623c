//! Random draws of a program, from a generator that the caller owns.
//!
//! Guarantees: the numbers depend only on the generator, not on other threads or the device. They are those that
//! Burn's Flex backend draws from the same generator (its own code makes them, [`TensorData::random`]).

use burn::backend::ir::{FloatOperationIr, NumericOperationIr, OperationIr, TensorIr};
use burn::tensor::{DType, Distribution, Shape, TensorData, bf16, f16};
use rand::rngs::StdRng;

/// A random draw: its output and its distribution.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Draw<'a> {
    pub(crate) out: &'a TensorIr,
    pub(crate) distribution: Distribution,
}

impl Draw<'_> {
    pub(crate) fn what(&self) -> (Shape, DType, Distribution) {
        (self.out.shape.clone(), self.out.dtype, self.distribution)
    }
}

/// The random draw that an operation makes, if it makes one.
pub(crate) fn draw(op: &OperationIr) -> Option<Draw<'_>> {
    match op {
        OperationIr::Float(_, FloatOperationIr::Random(random))
        | OperationIr::NumericInt(_, NumericOperationIr::IntRandom(random)) => {
            Some(Draw { out: &random.out, distribution: random.distribution })
        }
        _ => None,
    }
}

/// Numbers of this shape, element type and distribution.
pub(crate) fn drawn_as(shape: Shape, dtype: DType, from: Distribution, generator: &mut StdRng) -> TensorData {
    match dtype {
        DType::F64 => TensorData::random::<f64, _, _>(shape, from, generator),
        DType::F16 => TensorData::random::<f16, _, _>(shape, from, generator),
        DType::BF16 => TensorData::random::<bf16, _, _>(shape, from, generator),
        DType::I64 => TensorData::random::<i64, _, _>(shape, from, generator),
        DType::I32 => TensorData::random::<i32, _, _>(shape, from, generator),
        DType::I16 => TensorData::random::<i16, _, _>(shape, from, generator),
        DType::I8 => TensorData::random::<i8, _, _>(shape, from, generator),
        DType::U64 => TensorData::random::<u64, _, _>(shape, from, generator),
        DType::U32 => TensorData::random::<u32, _, _>(shape, from, generator),
        DType::U16 => TensorData::random::<u16, _, _>(shape, from, generator),
        DType::U8 => TensorData::random::<u8, _, _>(shape, from, generator),
        // `F32`; the other types are not drawn.
        _ => TensorData::random::<f32, _, _>(shape, from, generator),
    }
}
