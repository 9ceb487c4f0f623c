//! What a layer reads and gives besides its input and output, without its types.

use crate::payload::{Boundary, BoundaryError, Payload, PayloadReader};
use std::any::TypeId;

/// Takes a value of one type from the front of a payload, and returns its parts.
pub(super) type Part = fn(&mut PayloadReader) -> Result<Payload, BoundaryError>;

fn part<T: Boundary>(payload: &mut PayloadReader) -> Result<Payload, BoundaryError> {
    T::read(payload).map(Boundary::into_payload)
}

/// A value that goes past layers: its key, and its type.
#[derive(Clone, Debug)]
pub(super) struct Port {
    pub(super) key: &'static str,
    pub(super) part: Part,
    pub(super) kinds: fn() -> Vec<String>,
}

impl Port {
    pub(super) fn of<T: Boundary>(key: &'static str) -> Self {
        Self { key, part: part::<T>, kinds: T::kinds }
    }
}

/// Extras of the batch that a layer reads as one value.
#[derive(Clone, Debug)]
pub(super) struct Extras {
    pub(super) names: Vec<&'static str>,
    pub(super) of: TypeId,
    pub(super) part: Part,
}

impl Extras {
    pub(super) fn of<E: Boundary>(names: Vec<&'static str>) -> Self {
        Self { names, of: TypeId::of::<E>(), part: part::<E> }
    }

    /// Returns true if these are the extras of these names, read as this type.
    pub(super) fn is(&self, names: &[&'static str], of: TypeId) -> bool {
        self.names == names && self.of == of
    }
}

/// What a layer reads and gives besides its input and output.
#[derive(Clone, Debug, Default)]
pub(super) struct Ports {
    pub(super) extras: Vec<Extras>,
    /// Values from earlier layers, in the order in which its forward takes them.
    pub(super) takes: Vec<Port>,
    /// Values for later layers, in the order in which its forward gives them.
    pub(super) gives: Vec<Port>,
}
