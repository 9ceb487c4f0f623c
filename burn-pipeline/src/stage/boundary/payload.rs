//! What may cross a stage boundary: tensors of any rank and kind, alone, in tuples, options, vectors, or in a
//! user's own structs and enums.
//!
//! Guarantees: [`Boundary::into_payload`] then [`Boundary::from_payload`] gives the same value back; a payload
//! of another form is refused with the part that did not fit. A [`Payload`] is a flat list: tensors, with a
//! small number where the form itself varies (is the option there, how long is the vector, which variant).
//!
//! ```
//! use burn::tensor::{Int, Tensor};
//! use burn_pipeline::boundary;
//!
//! struct Hidden { x: Tensor<3>, positions: Tensor<2, Int> }
//! boundary!(struct Hidden { x, positions });
//!
//! enum Signal { Tokens(Tensor<2, Int>), Hidden(Tensor<3>) }
//! boundary!(enum Signal { Tokens(a), Hidden(a) });
//! ```

use super::any_tensor::{AnyTensor, TensorKind, TensorKindOf};
use super::skip::EDGE;
use burn::tensor::Tensor;
use burn::tensor::kind::Basic;
use std::collections::VecDeque;

/// One entry of a [`Payload`].
#[derive(Clone, Debug)]
pub enum PayloadPart {
    /// A tensor.
    Tensor(AnyTensor),
    /// A number that says what form follows.
    Tag(usize),
}

/// The flat form in which a [`Boundary`] value travels.
#[derive(Clone, Debug, Default)]
pub struct Payload(VecDeque<PayloadPart>);

/// Why a payload is not the value that was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BoundaryError {
    /// A tensor of another kind or rank.
    #[error(
        "tensor {index} of the payload is a {got} tensor of rank {got_rank}, but a {expected} tensor of rank {expected_rank} is expected"
    )]
    Mismatch {
        /// Which part, from 0.
        index: usize,
        /// TensorKind that came.
        got: TensorKind,
        /// Rank that came.
        got_rank: usize,
        /// TensorKind expected.
        expected: TensorKind,
        /// Rank expected.
        expected_rank: usize,
    },
    /// The payload ended too early.
    #[error("the payload ended where {expected} was expected")]
    Missing {
        /// What should have come.
        expected: &'static str,
    },
    /// Parts were left over.
    #[error("the payload holds {left} part(s) more than the value that reads it")]
    LeftOver {
        /// How many.
        left: usize,
    },
    /// Something else than expected: a tensor for a form number or the reverse, or an unknown variant.
    #[error("the payload does not hold {expected} where it is expected")]
    Structure {
        /// What should have come.
        expected: &'static str,
    },
}

/// A value that crosses stage boundaries.
pub trait Boundary: Sized + Send + 'static {
    /// Appends the value's parts.
    fn write(self, payload: &mut Payload);

    /// Takes the value's parts off the front.
    ///
    /// # Errors
    /// If the parts are not those of such a value.
    fn read(payload: &mut PayloadReader) -> Result<Self, BoundaryError>;

    /// The value as a payload.
    fn into_payload(self) -> Payload {
        let mut payload = Payload::default();
        self.write(&mut payload);
        payload
    }

    /// The value that a payload holds, all of it.
    ///
    /// # Errors
    /// If the parts are not those of such a value.
    fn from_payload(payload: Payload) -> Result<Self, BoundaryError> {
        let mut reader = PayloadReader::new(payload);
        let value = Self::read(&mut reader)?;
        match reader.parts.len() {
            0 => Ok(value),
            left => Err(BoundaryError::LeftOver { left }),
        }
    }
}

impl Payload {
    /// A payload of given parts.
    pub fn from_parts(parts: impl IntoIterator<Item = PayloadPart>) -> Self {
        Self(parts.into_iter().collect())
    }

    /// Appends a tensor.
    pub fn push_tensor(&mut self, tensor: AnyTensor) {
        self.0.push_back(PayloadPart::Tensor(tensor));
    }

    /// Appends a number that says what form follows.
    pub fn push_tag(&mut self, tag: usize) {
        self.0.push_back(PayloadPart::Tag(tag));
    }

    /// Its parts.
    pub fn parts(&self) -> impl Iterator<Item = &PayloadPart> {
        self.0.iter()
    }

    /// Its parts, moved out.
    pub fn into_parts(self) -> impl Iterator<Item = PayloadPart> {
        self.0.into_iter()
    }

    /// Its tensors, in order.
    pub fn tensors(&self) -> impl Iterator<Item = &AnyTensor> {
        self.0.iter().filter_map(|part| match part {
            PayloadPart::Tensor(tensor) => Some(tensor),
            PayloadPart::Tag(_) => None,
        })
    }

    /// The same payload with every tensor replaced; `f` also gets the tensor's position among the tensors.
    pub fn map_tensors<E>(self, mut f: impl FnMut(usize, AnyTensor) -> Result<AnyTensor, E>) -> Result<Self, E> {
        let mut position = 0;
        let map = |part| match part {
            PayloadPart::Tensor(tensor) => {
                position += 1;
                f(position - 1, tensor).map(PayloadPart::Tensor)
            }
            tag => Ok(tag),
        };
        Ok(Self(self.0.into_iter().map(map).collect::<Result<_, E>>()?))
    }

    /// Bytes that its tensors take.
    pub fn bytes(&self) -> usize {
        self.tensors().map(AnyTensor::bytes).sum()
    }
}

/// Reads a [`Payload`] from its front.
#[derive(Debug)]
pub struct PayloadReader {
    parts: VecDeque<PayloadPart>,
    index: usize,
}

impl PayloadReader {
    /// Starts at a payload's front.
    pub fn new(payload: Payload) -> Self {
        Self { parts: payload.0, index: 0 }
    }

    fn next(&mut self, expected: &'static str) -> Result<PayloadPart, BoundaryError> {
        self.index += 1;
        self.parts.pop_front().ok_or(BoundaryError::Missing { expected })
    }

    /// Takes a tensor.
    ///
    /// # Errors
    /// If the next part is not a tensor of that rank and kind.
    pub fn tensor<const D: usize, K: Basic + TensorKindOf>(&mut self) -> Result<Tensor<D, K>, BoundaryError> {
        match self.next("a tensor")? {
            PayloadPart::Tag(_) => Err(BoundaryError::Structure { expected: "a tensor" }),
            PayloadPart::Tensor(tensor) => tensor.into_tensor().map_err(|(got, got_rank)| BoundaryError::Mismatch {
                index: self.index - 1,
                got,
                got_rank,
                expected: <K as TensorKindOf>::KIND,
                expected_rank: D,
            }),
        }
    }

    /// Takes a tensor of any rank and kind.
    ///
    /// # Errors
    /// If the next part is not a tensor.
    pub fn any_tensor(&mut self) -> Result<AnyTensor, BoundaryError> {
        match self.next("a tensor")? {
            PayloadPart::Tensor(tensor) => Ok(tensor),
            PayloadPart::Tag(_) => Err(BoundaryError::Structure { expected: "a tensor" }),
        }
    }

    /// Does a value follow that goes past the next stage?
    pub(super) fn is_at_edge(&self) -> bool {
        matches!(self.parts.front(), Some(PayloadPart::Tag(EDGE)))
    }

    /// Takes the mark before such a value.
    pub(super) fn edge(&mut self) -> Result<(), BoundaryError> {
        let expected = "a value from past the neighbouring stage";
        match self.next(expected)? {
            PayloadPart::Tag(EDGE) => Ok(()),
            _ => Err(BoundaryError::Structure { expected }),
        }
    }

    /// Takes a form number, which must be below `limit`.
    ///
    /// # Errors
    /// If the next part is none, or too large.
    pub fn tag(&mut self, limit: usize, expected: &'static str) -> Result<usize, BoundaryError> {
        match self.next(expected)? {
            PayloadPart::Tag(tag) if tag < limit => Ok(tag),
            _ => Err(BoundaryError::Structure { expected }),
        }
    }
}

impl<const D: usize, K: Basic + TensorKindOf + 'static> Boundary for Tensor<D, K> {
    fn write(self, payload: &mut Payload) {
        payload.push_tensor(AnyTensor::new(self));
    }

    fn read(payload: &mut PayloadReader) -> Result<Self, BoundaryError> {
        payload.tensor()
    }
}

impl Boundary for AnyTensor {
    fn write(self, payload: &mut Payload) {
        payload.push_tensor(self);
    }

    fn read(payload: &mut PayloadReader) -> Result<Self, BoundaryError> {
        payload.any_tensor()
    }
}

impl<T: Boundary> Boundary for Option<T> {
    fn write(self, payload: &mut Payload) {
        payload.push_tag(usize::from(self.is_some()));
        if let Some(value) = self {
            value.write(payload);
        }
    }

    fn read(payload: &mut PayloadReader) -> Result<Self, BoundaryError> {
        match payload.tag(2, "whether an optional value is there")? {
            0 => Ok(None),
            _ => T::read(payload).map(Some),
        }
    }
}

impl<T: Boundary> Boundary for Vec<T> {
    fn write(self, payload: &mut Payload) {
        payload.push_tag(self.len());
        self.into_iter().for_each(|value| value.write(payload));
    }

    fn read(payload: &mut PayloadReader) -> Result<Self, BoundaryError> {
        let length = payload.tag(usize::MAX, "the length of a list")?;
        (0..length).map(|_| T::read(payload)).collect()
    }
}

macro_rules! tuples {
    ($(($($name:ident)*))*) => {$(
        impl<$($name: Boundary),*> Boundary for ($($name,)*) {
            #[allow(non_snake_case, reason = "the type's name serves as the variable's")]
            fn write(self, payload: &mut Payload) {
                let _ = &payload;
                let ($($name,)*) = self;
                $($name.write(payload);)*
            }

            fn read(payload: &mut PayloadReader) -> Result<Self, BoundaryError> {
                let _ = &payload;
                Ok(($($name::read(payload)?,)*))
            }
        }
    )*};
}

tuples! { () (A) (A B) (A B C) (A B C D) (A B C D E) (A B C D E F) }

/// Implements [`Boundary`](crate::stage::Boundary) for a struct with named fields, or for an enum whose
/// variants hold one value each.
#[macro_export]
macro_rules! boundary {
    (struct $name:ident { $($field:ident),+ $(,)? }) => {
        impl $crate::stage::Boundary for $name {
            fn write(self, payload: &mut $crate::stage::Payload) {
                $($crate::stage::Boundary::write(self.$field, payload);)+
            }

            fn read(payload: &mut $crate::stage::PayloadReader) -> Result<Self, $crate::stage::BoundaryError> {
                Ok(Self { $($field: $crate::stage::Boundary::read(payload)?),+ })
            }
        }
    };
    (enum $name:ident { $($variant:ident ( $value:ident )),+ $(,)? }) => {
        impl $crate::stage::Boundary for $name {
            fn write(self, payload: &mut $crate::stage::Payload) {
                let mut _tag = 0;
                $(
                    if let Self::$variant(_) = &self {
                        payload.push_tag(_tag);
                    }
                    _tag += 1;
                )+
                match self {
                    $(Self::$variant($value) => $crate::stage::Boundary::write($value, payload),)+
                }
            }

            fn read(payload: &mut $crate::stage::PayloadReader) -> Result<Self, $crate::stage::BoundaryError> {
                let variants = [$(stringify!($variant)),+].len();
                let tag = payload.tag(variants, concat!("a variant of ", stringify!($name)))?;
                let mut _variant = 0;
                $(
                    if tag == _variant {
                        return Ok(Self::$variant($crate::stage::Boundary::read(payload)?));
                    }
                    _variant += 1;
                )+
                Err($crate::stage::BoundaryError::Structure { expected: concat!("a variant of ", stringify!($name)) })
            }
        }
    };
}
