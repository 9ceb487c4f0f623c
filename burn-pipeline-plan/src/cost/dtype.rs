//! Element types of parameters: their names and widths.

use crate::named::named;
use serde::{Deserialize, Serialize};

named! {
    /// The type of a tensor's elements.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Dtype, name {
        /// 64-bit float.
        F64 => "f64",
        /// 32-bit float.
        F32 => "f32",
        /// 16-bit float.
        F16 => "f16",
        /// bfloat16: a 16-bit float with the range of `F32`.
        Bf16 => "bf16",
        /// 8-bit float.
        F8 => "f8",
        /// 64-bit integer.
        I64 => "i64",
        /// 32-bit integer.
        I32 => "i32",
        /// 16-bit integer.
        I16 => "i16",
        /// 8-bit integer.
        I8 => "i8",
    }
}

impl Dtype {
    /// The bytes of one element.
    pub fn bytes(self) -> u64 {
        match self {
            Dtype::F64 | Dtype::I64 => 8,
            Dtype::F32 | Dtype::I32 => 4,
            Dtype::F16 | Dtype::Bf16 | Dtype::I16 => 2,
            Dtype::F8 | Dtype::I8 => 1,
        }
    }
}
