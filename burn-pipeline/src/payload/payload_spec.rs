//! Kinds, element types and sizes of a payload, without its tensors' values: what is expected at a stage's boundary.
//! Of a plain value only the type is expected.

use super::any_tensor::AnyTensor;
use super::cut_over::CutOver;
use super::host_value::HostValue;
use super::parts::{Payload, PayloadPart};
use super::tensor_spec::TensorSpec;
use super::values::Boundary;

#[cfg(test)]
mod tests;

/// One entry of a [`PayloadSpec`], for one part of the payload.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum SpecPart {
    Tensor(TensorSpec),
    Host(HostValue),
    /// A tag (whether an option is there, a list's length, a variant).
    Tag(usize),
}

/// The specs of a payload's tensors, its plain values and its tags.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use burn_pipeline::payload::PayloadSpec;
/// // Hidden states of width 8, with any number of samples and any length.
/// let example = Tensor::<3>::zeros([1, 1, 8], &Device::flex());
/// let spec = PayloadSpec::of(example).free(0).free(1);
/// assert_eq!(spec.to_string(), "(float F32 [?, ?, 8])");
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PayloadSpec(Vec<SpecPart>);

/// The first part of a payload that differs from its spec.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SpecMismatch {
    /// The index of the tensor, from 0; `None` if a tag differs.
    pub tensor: Option<usize>,
    pub expected: String,
    pub got: String,
}

impl SpecPart {
    /// The spec of one entry of a payload.
    pub(crate) fn of(part: &PayloadPart) -> Self {
        match part {
            PayloadPart::Tensor(tensor) => SpecPart::Tensor(TensorSpec::of(tensor)),
            PayloadPart::Host(value) => SpecPart::Host(value.clone()),
            PayloadPart::Tag(number) => SpecPart::Tag(*number),
        }
    }

    /// The mark, if it is one.
    fn mark(&self) -> Option<CutOver> {
        if let SpecPart::Tag(tag) = self { CutOver::of(*tag) } else { None }
    }
}

impl std::fmt::Display for SpecPart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SpecPart::Tensor(tensor) => tensor.fmt(f),
            SpecPart::Host(value) => value.fmt(f),
            SpecPart::Tag(number) => write!(f, "tag {number}"),
        }
    }
}

impl std::fmt::Display for PayloadSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let places = (0..self.0.len()).filter(|&place| self.0[place].mark().is_none());
        let parts: Vec<String> = places.map(|place| self.described(place)).collect();
        write!(f, "({})", parts.join("; "))
    }
}

impl PayloadSpec {
    /// The spec of a value.
    pub fn of(value: impl Boundary) -> Self {
        Self::of_payload(&value.into_payload())
    }

    /// The spec of a payload.
    pub fn of_payload(payload: &Payload) -> Self {
        Self(payload.parts().map(SpecPart::of).collect())
    }

    /// A payload with these tags and plain values, and with other tensors in the places of its tensors.
    pub(crate) fn filled(&self, mut tensors: impl Iterator<Item = AnyTensor>) -> Payload {
        Payload::from_parts(self.0.iter().filter_map(|part| match part {
            SpecPart::Tensor(_) => tensors.next().map(PayloadPart::Tensor),
            SpecPart::Host(value) => Some(PayloadPart::Host(value.clone())),
            SpecPart::Tag(number) => Some(PayloadPart::Tag(*number)),
        }))
    }

    pub(crate) fn from_parts(parts: impl IntoIterator<Item = SpecPart>) -> Self {
        Self(parts.into_iter().collect())
    }

    /// The same spec with any size allowed for dimension `dim`, in every tensor that has it.
    pub fn free(mut self, dim: usize) -> Self {
        for part in &mut self.0 {
            if let SpecPart::Tensor(tensor) = part
                && let Some(size) = tensor.dims.get_mut(dim)
            {
                *size = None;
            }
        }
        self
    }

    /// The spec that both fit: sizes in which they differ become free. `None` if they differ in anything else.
    pub(crate) fn join(&self, other: &Self) -> Option<Self> {
        let both = |(one, other): (&SpecPart, &SpecPart)| match (one, other) {
            (SpecPart::Tensor(one), SpecPart::Tensor(other)) => {
                let alike = one.dtype == other.dtype && one.dims.len() == other.dims.len();
                let dims = one.dims.iter().zip(&other.dims).map(|(a, b)| a.filter(|_| a == b)).collect();
                alike.then_some(SpecPart::Tensor(TensorSpec { dims, ..one.clone() }))
            }
            (SpecPart::Host(one), SpecPart::Host(other)) => one.is_like(other).then(|| SpecPart::Host(one.clone())),
            (one, other) => (one == other).then(|| one.clone()),
        };
        let parts = self.0.iter().zip(&other.0).map(both).collect::<Option<Vec<_>>>();
        parts.filter(|_| self.0.len() == other.0.len()).map(Self)
    }

    pub(crate) fn tensors(&self) -> impl Iterator<Item = &TensorSpec> {
        self.0.iter().filter_map(|part| if let SpecPart::Tensor(tensor) = part { Some(tensor) } else { None })
    }

    /// The entries of a list of optional tensors, which describes gradients; `None` if this is not such a list.
    pub(crate) fn optional_tensors(&self) -> Option<Vec<Option<&TensorSpec>>> {
        let mut parts = self.0.iter().filter(|part| part.mark().is_none());
        let Some(SpecPart::Tag(length)) = parts.next() else { return None };
        let mut list = Vec::new();
        while let Some(part) = parts.next() {
            list.push(match part {
                SpecPart::Tag(0) => None,
                SpecPart::Tag(1) => match parts.next() {
                    Some(SpecPart::Tensor(tensor)) => Some(tensor),
                    _ => return None,
                },
                _ => return None,
            });
        }
        (list.len() == *length).then_some(list)
    }

    /// Describes a part in words; a mark and the tensor after it count as one.
    fn described(&self, place: usize) -> String {
        let cut = |place: usize| self.0.get(place).and_then(SpecPart::mark);
        match (self.0.get(place), self.0.get(place + 1)) {
            (Some(SpecPart::Tensor(tensor)), _) => tensor.described(place.checked_sub(1).and_then(cut)),
            (Some(SpecPart::Tag(_)), Some(SpecPart::Tensor(tensor))) if cut(place).is_some() => {
                tensor.described(cut(place))
            }
            (Some(part), _) => part.to_string(),
            (None, _) => "nothing".to_owned(),
        }
    }

    /// Returns true if there is a tensor at this index, or the mark of one.
    fn has_tensor(&self, place: usize) -> bool {
        self.0.get(place).is_some_and(|part| matches!(part, SpecPart::Tensor(_)) || part.mark().is_some())
    }

    /// Returns the first part that does not fit what is expected.
    pub(crate) fn mismatch(&self, expected: &Self) -> Option<SpecMismatch> {
        let mut tensors = 0;
        for place in 0..self.0.len().max(expected.0.len()) {
            let (got, wanted) = (self.0.get(place), expected.0.get(place));
            let fits = match (got, wanted) {
                (Some(SpecPart::Tensor(got)), Some(SpecPart::Tensor(wanted))) => got.fits(wanted),
                (Some(SpecPart::Host(got)), Some(SpecPart::Host(wanted))) => got.is_like(wanted),
                (got, wanted) => got == wanted,
            };
            if !fits {
                let tensor = self.has_tensor(place) || expected.has_tensor(place);
                let (expected, got) = (expected.described(place), self.described(place));
                return Some(SpecMismatch { tensor: tensor.then_some(tensors), expected, got });
            }
            tensors += usize::from(matches!(got, Some(SpecPart::Tensor(_))));
        }
        None
    }
}
