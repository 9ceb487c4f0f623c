//! The flat list in which a value crosses a stage boundary.
//!
//! Guarantees: a payload that does not hold the value that is read from it is refused, with the part that did not fit. A
//! [`Payload`] holds tensors, plain values, and a tag (a small number) wherever a value's layout varies: is the option there,
//! how long is the list, which variant is it.

use super::any_tensor::{AnyTensor, TensorKind};
use super::host_value::HostValue;
use burn::tensor::Tensor;
use burn::tensor::kind::Basic;
use std::collections::VecDeque;
use std::convert::Infallible;

/// The tag before each value that goes past the next stage; no list is as long.
pub(super) const EDGE: usize = usize::MAX;

/// One entry of a [`Payload`].
#[derive(Clone, Debug)]
pub enum PayloadPart {
    /// A tensor.
    Tensor(AnyTensor),
    /// A plain number or string.
    Host(HostValue),
    /// A number that says what follows: is an option there, a list's length, a variant.
    Tag(usize),
}

/// A value as a flat list of tensors, plain values and tags: what a stage sends and receives.
#[derive(Clone, Debug, Default)]
pub struct Payload(VecDeque<PayloadPart>);

/// The reason for which a payload is not the value that was to be read from it. Parts count from 0.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum BoundaryError {
    /// A tensor of another kind or rank.
    #[error(
        "tensor {index} of the payload is a {got} tensor of rank {got_rank}, but a {expected} tensor of rank {expected_rank} is expected"
    )]
    Mismatch { index: usize, got: TensorKind, got_rank: usize, expected: TensorKind, expected_rank: usize },
    /// The payload ended too early.
    #[error("the payload ended where {expected} was expected")]
    Missing { expected: &'static str },
    /// Parts were left over.
    #[error("the payload holds {left} part(s) more than the value that reads it")]
    LeftOver { left: usize },
    /// A part of another kind (a tensor, a plain value of one type, a tag), or an unknown variant.
    #[error("the payload does not hold {expected} where it is expected")]
    Structure { expected: &'static str },
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

    /// Appends a plain value.
    pub fn push_host(&mut self, value: HostValue) {
        self.0.push_back(PayloadPart::Host(value));
    }

    /// Appends a tag.
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
            PayloadPart::Host(_) | PayloadPart::Tag(_) => None,
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
            other => Ok(other),
        };
        Ok(Self(self.0.into_iter().map(map).collect::<Result<_, E>>()?))
    }

    /// The same payload without autodiff.
    pub(crate) fn inner(self) -> Self {
        let Ok(payload) = self.map_tensors(|_, tensor| Ok::<_, Infallible>(tensor.inner()));
        payload
    }

    /// The same payload for another thread: see [`AnyTensor::unshared`].
    pub(crate) fn unshared(self) -> Self {
        let Ok(payload) = self.map_tensors(|_, tensor| Ok::<_, Infallible>(tensor.unshared()));
        payload
    }

    /// The same payload in memory of its own.
    pub(crate) fn copied(self) -> Self {
        let Ok(payload) = self.map_tensors(|_, tensor| Ok::<_, Infallible>(tensor.copied()));
        payload
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
    pub fn tensor<const D: usize, K: Basic + 'static>(&mut self) -> Result<Tensor<D, K>, BoundaryError> {
        match self.next("a tensor")? {
            PayloadPart::Host(_) | PayloadPart::Tag(_) => Err(BoundaryError::Structure { expected: "a tensor" }),
            PayloadPart::Tensor(tensor) => tensor.into_tensor().map_err(|(got, got_rank)| BoundaryError::Mismatch {
                index: self.index - 1,
                got,
                got_rank,
                expected: TensorKind::of_marker::<K>(),
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
            PayloadPart::Host(_) | PayloadPart::Tag(_) => Err(BoundaryError::Structure { expected: "a tensor" }),
        }
    }

    /// Takes a plain value of any type.
    ///
    /// # Errors
    /// If the next part is none.
    pub fn host(&mut self, expected: &'static str) -> Result<HostValue, BoundaryError> {
        match self.next(expected)? {
            PayloadPart::Host(value) => Ok(value),
            PayloadPart::Tensor(_) | PayloadPart::Tag(_) => Err(BoundaryError::Structure { expected }),
        }
    }

    /// All that was not read.
    pub fn rest(&mut self) -> Payload {
        Payload(std::mem::take(&mut self.parts))
    }

    /// The number of parts that were not read.
    pub(super) fn left(&self) -> usize {
        self.parts.len()
    }

    /// Is the next part the mark of a value that goes past the next stage?
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

    /// Takes a tag, which must be below `limit`.
    ///
    /// # Errors
    /// If the next part is no tag, or is too large.
    pub fn tag(&mut self, limit: usize, expected: &'static str) -> Result<usize, BoundaryError> {
        match self.next(expected)? {
            PayloadPart::Tag(tag) if tag < limit => Ok(tag),
            _ => Err(BoundaryError::Structure { expected }),
        }
    }
}
