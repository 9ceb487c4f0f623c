//! The flat list in which a value crosses a stage boundary.
//!
//! A [`Payload`] holds tensors, plain values, and a tag (a small number) wherever a value's layout varies: whether an
//! option is there, how long a list is, which variant it is. A mark, which is a tag with no other use, comes before
//! each value that goes past the next stage, and before each tensor of which every member of a tensor-parallel group
//! holds a piece ([`CutOver`](super::cut_over::CutOver)).

use super::any_tensor::AnyTensor;
use super::fused::run_waiting;
use super::host_value::HostValue;
use std::collections::VecDeque;
use std::convert::Infallible;

/// The tag before each value that goes past the next stage; no list has this length.
pub(super) const EDGE: usize = usize::MAX;

/// One entry of a [`Payload`].
#[derive(Clone, Debug)]
pub enum PayloadPart {
    /// A tensor.
    Tensor(AnyTensor),
    /// A plain number or string.
    Host(HostValue),
    /// A number that says what follows: whether an option is there, a list's length, a variant.
    Tag(usize),
}

/// A value as a flat list of tensors, plain values and tags: what a stage sends and receives.
#[derive(Clone, Debug, Default)]
pub struct Payload(pub(super) VecDeque<PayloadPart>);

impl Payload {
    /// A payload of the given parts.
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

    /// Appends all parts of another payload.
    pub(crate) fn append(&mut self, other: Self) {
        self.0.extend(other.0);
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

    /// Like [`Payload::map_tensors`], with a function that cannot fail.
    pub(crate) fn map(self, mut f: impl FnMut(usize, AnyTensor) -> AnyTensor) -> Self {
        let Ok(payload) = self.map_tensors(|position, tensor| Ok::<_, Infallible>(f(position, tensor)));
        payload
    }

    /// The same payload without autodiff.
    pub(crate) fn inner(self) -> Self {
        self.map(|_, tensor| tensor.inner())
    }

    /// The same payload for another thread: see [`AnyTensor::unshared`] and [`run_waiting`].
    pub(crate) fn unshared(self) -> Self {
        let payload = self.map(|_, tensor| tensor.unshared());
        run_waiting(payload.tensors());
        payload
    }

    /// The same payload on the receiving thread: see [`AnyTensor::taken`].
    pub(crate) fn taken(self) -> Self {
        self.map(|_, tensor| tensor.taken())
    }

    /// The same payload in memory of its own: see [`AnyTensor::copied`].
    pub(crate) fn copied(self) -> Self {
        self.map(|_, tensor| tensor.copied())
    }

    /// The size of its tensors in bytes.
    pub fn bytes(&self) -> usize {
        self.tensors().map(AnyTensor::bytes).sum()
    }
}
