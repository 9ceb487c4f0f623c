//! Plain numbers and strings: values other than tensors that cross a stage boundary or are extras.
//!
//! Guarantees: a value keeps its type and all its bits on every link; a value of one type is never read as another
//! type.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A plain value. Two are equal if their types and bits are equal, so NaN equals itself and -0 differs from 0.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum HostValue {
    /// A floating-point number.
    Float(f64),
    /// An integer.
    Int(i64),
    /// True or false.
    Bool(bool),
    /// A string.
    Text(String),
}

impl HostValue {
    /// Returns true if both have the same type.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

impl PartialEq for HostValue {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Float(one), Self::Float(other)) => one.to_bits() == other.to_bits(),
            (Self::Int(one), Self::Int(other)) => one == other,
            (Self::Bool(one), Self::Bool(other)) => one == other,
            (Self::Text(one), Self::Text(other)) => one == other,
            _ => false,
        }
    }
}

impl Eq for HostValue {}

impl fmt::Display for HostValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Float(value) => write!(f, "f64 {value}"),
            Self::Int(value) => write!(f, "i64 {value}"),
            Self::Bool(value) => write!(f, "bool {value}"),
            Self::Text(value) => write!(f, "string {value:?}"),
        }
    }
}
