//! Element-wise functions over whole tiles: loops that the compiler vectorises for the processor of the function into
//! which they are inlined.
//!
//! Operands and results never overlap. Slices tell the compiler so.

use super::code::Buffer;
use super::math;
use crate::graph::Map;
use std::mem::MaybeUninit;

/// An operand of a tile.
#[derive(Clone, Copy)]
pub(super) enum Value {
    Scalar(f32),
    /// A value for each row.
    Row(Buffer),
    /// A value for each element.
    Wide(Buffer),
}

/// The number of rows, and of elements in each.
#[derive(Clone, Copy)]
pub(super) struct Extent {
    pub(super) rows: usize,
    pub(super) columns: usize,
}

impl Extent {
    /// The same elements as one long row, if the rows of all buffers are contiguous.
    #[inline(always)]
    fn joined(self, buffers: &[Buffer]) -> Self {
        match self.rows == 1 || buffers.iter().all(|buffer| buffer.step == self.columns) {
            true => Self { rows: 1, columns: self.rows * self.columns },
            false => self,
        }
    }
}

/// The value of an operand for a row.
///
/// # Safety
/// A buffer has this row.
#[inline(always)]
unsafe fn scalar(value: Value, row: usize) -> f32 {
    match value {
        Value::Scalar(value) => value,
        // SAFETY: guaranteed by the caller.
        Value::Row(buffer) | Value::Wide(buffer) => unsafe { *buffer.at.add(row) },
    }
}

/// Joins the rows of a tile into one if the operand is a scalar.
#[inline(always)]
fn joined(extent: Extent, wide: &[Buffer], value: Value) -> Extent {
    match value {
        Value::Scalar(_) => extent.joined(wide),
        _ => extent,
    }
}

// The loops are macros: an inlined function always becomes part of the function for a processor, and a closure may
// not.

/// A function of one operand over a tile.
macro_rules! map1 {
    ($extent:expr, $to:expr, $x:expr, |$value:ident| $result:expr) => {
        match $x {
            Value::Wide(x) => {
                let Extent { rows, columns } = $extent.joined(&[$to, x]);
                for row in 0..rows {
                    // SAFETY: guaranteed by the caller.
                    let (to, x) = unsafe { ($to.row_mut(row, columns), x.row(row, columns)) };
                    for (to, $value) in to.iter_mut().zip(x) {
                        let $value = *$value;
                        to.write($result);
                    }
                }
            }
            x => {
                for row in 0..$extent.rows {
                    // SAFETY: guaranteed by the caller.
                    let (to, $value) = unsafe { ($to.row_mut(row, $extent.columns), scalar(x, row)) };
                    to.fill(MaybeUninit::new($result));
                }
            }
        }
    };
}

/// A function of two operands over a tile.
macro_rules! map2 {
    ($extent:expr, $to:expr, $x:expr, $y:expr, |$left:ident, $right:ident| $result:expr) => {
        match ($x, $y) {
            (Value::Wide(x), Value::Wide(y)) => {
                let Extent { rows, columns } = $extent.joined(&[$to, x, y]);
                for row in 0..rows {
                    // SAFETY: guaranteed by the caller.
                    let (to, x, y) = unsafe { ($to.row_mut(row, columns), x.row(row, columns), y.row(row, columns)) };
                    for (to, ($left, $right)) in to.iter_mut().zip(x.iter().zip(y)) {
                        let ($left, $right) = (*$left, *$right);
                        to.write($result);
                    }
                }
            }
            (Value::Wide(x), y) => {
                let Extent { rows, columns } = joined($extent, &[$to, x], y);
                for row in 0..rows {
                    // SAFETY: guaranteed by the caller.
                    let (to, x, $right) = unsafe { ($to.row_mut(row, columns), x.row(row, columns), scalar(y, row)) };
                    for (to, $left) in to.iter_mut().zip(x) {
                        let $left = *$left;
                        to.write($result);
                    }
                }
            }
            (x, Value::Wide(y)) => {
                let Extent { rows, columns } = joined($extent, &[$to, y], x);
                for row in 0..rows {
                    // SAFETY: guaranteed by the caller.
                    let (to, $left, y) = unsafe { ($to.row_mut(row, columns), scalar(x, row), y.row(row, columns)) };
                    for (to, $right) in to.iter_mut().zip(y) {
                        let $right = *$right;
                        to.write($result);
                    }
                }
            }
            (x, y) => {
                for row in 0..$extent.rows {
                    // SAFETY: guaranteed by the caller.
                    let to = unsafe { $to.row_mut(row, $extent.columns) };
                    // SAFETY: guaranteed by the caller.
                    let ($left, $right) = unsafe { (scalar(x, row), scalar(y, row)) };
                    to.fill(MaybeUninit::new($result));
                }
            }
        }
    };
}

/// # Safety
/// As for [`map`].
#[inline(always)]
unsafe fn select(extent: Extent, to: Buffer, [mask, x, y]: [Value; 3]) {
    for row in 0..extent.rows {
        // SAFETY: guaranteed by the caller.
        let to = unsafe { to.row_mut(row, extent.columns) };
        let values = |value: Value| match value {
            // SAFETY: guaranteed by the caller.
            Value::Wide(buffer) => Some(unsafe { buffer.row(row, extent.columns) }),
            _ => None,
        };
        // SAFETY: guaranteed by the caller.
        let one = |value: Value| unsafe { scalar(value, row) };
        let Some(mask_row) = values(mask) else {
            let chosen = if one(mask) != 0.0 { x } else { y };
            match values(chosen) {
                Some(chosen) => _ = to.write_copy_of_slice(chosen),
                None => to.fill(MaybeUninit::new(one(chosen))),
            }
            continue;
        };
        let masked = to.iter_mut().zip(mask_row);
        match (values(x), values(y)) {
            (None, Some(y)) => {
                let x = one(x);
                for ((to, mask), y) in masked.zip(y) {
                    to.write(if *mask != 0.0 { x } else { *y });
                }
            }
            (Some(x), None) => {
                let y = one(y);
                for ((to, mask), x) in masked.zip(x) {
                    to.write(if *mask != 0.0 { *x } else { y });
                }
            }
            (Some(x), Some(y)) => {
                for ((to, mask), (x, y)) in masked.zip(x.iter().zip(y)) {
                    to.write(if *mask != 0.0 { *x } else { *y });
                }
            }
            (None, None) => {
                let (x, y) = (one(x), one(y));
                for (to, mask) in masked {
                    to.write(if *mask != 0.0 { x } else { y });
                }
            }
        }
    }
}

/// Runs a function over a tile.
///
/// # Safety
/// Buffers hold a tile of this extent, and `to` is not an operand.
#[inline(always)]
pub(super) unsafe fn map<const FMA: bool>(map: Map, extent: Extent, to: Buffer, values: [Value; 3]) {
    let [x, y, _] = values;
    // One loop for each function, so that each is vectorised separately.
    macro_rules! loops {
        (one: $($first:ident)*; two: $($second:ident)*) => {
            match map {
                $(Map::$first => map1!(extent, to, x, |x| math::one::<FMA>(Map::$first, x)),)*
                $(Map::$second => map2!(extent, to, x, y, |x, y| math::two::<FMA>(Map::$second, x, y)),)*
                // SAFETY: guaranteed by the caller.
                Map::Select => unsafe { select(extent, to, values) },
            }
        };
    }
    loops! {
        one: Copy Neg Abs Sign Recip Square Cube Sqrt Exp Log Log1p Sin Cos Tanh Erf Floor Ceil Relu Sigmoid Gelu Not;
        two: Add Sub Mul Div AtLeast AtMost Power LeakyRelu ReluBackward SigmoidBackward GeluBackward
            Equal NotEqual Greater GreaterEqual Lower LowerEqual
    }
}
