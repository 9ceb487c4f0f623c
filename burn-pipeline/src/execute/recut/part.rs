//! The parts of messages, and the marks of pieces among them.
//!
//! The same code re-cuts a payload and its spec, so expected and sent messages agree.

use crate::payload::{CutOver, HostValue, Payload, PayloadPart, PayloadSpec, SpecPart, TensorSpec};

/// One part of a payload, or of a payload's spec.
pub(in crate::execute) trait Part: Clone {
    /// Makes a tag.
    fn of_tag(tag: usize) -> Self;

    /// Its spec, without values.
    fn spec(&self) -> SpecPart;

    /// For a tensor, the slice `place` of `places` equal ones along an axis that divides evenly.
    fn narrow(&self, axis: usize, place: usize, places: usize) -> Self;

    /// A hash of a tensor's elements, if they are known.
    fn digest(&self) -> Option<Self>;
}

/// Returns how each tensor is cut, in order.
pub(in crate::execute) fn cuts<P: Part>(parts: &[P]) -> Vec<Option<CutOver>> {
    let mut mark = None;
    let cut = |part: &P| match part.spec() {
        SpecPart::Tag(tag) => {
            mark = CutOver::of(tag);
            None
        }
        SpecPart::Tensor(_) => Some(mark.take()),
        SpecPart::Host(_) => None,
    };
    parts.iter().filter_map(cut).collect()
}

/// Marks a list of optional gradients like the tensors that they belong to.
pub(in crate::execute) fn marked<P: Part>(gradients: Vec<P>, cuts: &[Option<CutOver>]) -> Vec<P> {
    // The list begins with its length; each gradient is preceded by a tag that says whether it is present.
    let mut tags = 0;
    let mark = |part: P| {
        let is_tensor = matches!(part.spec(), SpecPart::Tensor(_));
        tags += usize::from(!is_tensor);
        let cut = cuts.get(usize::wrapping_sub(tags, 2)).copied().flatten().filter(|_| is_tensor);
        cut.map(|cut| P::of_tag(cut.tag())).into_iter().chain([part])
    };
    gradients.into_iter().flat_map(mark).collect()
}

/// Removes the marks.
pub(in crate::execute) fn unmarked(gradients: Payload) -> Payload {
    let is_mark = |part: &PayloadPart| matches!(part, PayloadPart::Tag(tag) if CutOver::of(*tag).is_some());
    Payload::from_parts(gradients.into_parts().filter(|part| !is_mark(part)))
}

/// Describes a piece in words, with the whole tensor's shape.
pub(super) fn described(piece: &TensorSpec, cut: CutOver) -> String {
    PayloadSpec::from_parts([SpecPart::Tag(cut.tag()), SpecPart::Tensor(piece.clone())]).to_string()
}

impl Part for PayloadPart {
    fn of_tag(tag: usize) -> Self {
        PayloadPart::Tag(tag)
    }

    fn spec(&self) -> SpecPart {
        SpecPart::of(self)
    }

    fn narrow(&self, axis: usize, place: usize, places: usize) -> Self {
        match self {
            PayloadPart::Tensor(tensor) if places > 1 => {
                let each = tensor.shape()[axis] / places;
                PayloadPart::Tensor(tensor.clone().narrow(axis, place * each, (place + 1) * each))
            }
            part => part.clone(),
        }
    }

    fn digest(&self) -> Option<Self> {
        let PayloadPart::Tensor(tensor) = self else { return None };
        // A device that cannot be read reports it where its tensors are used.
        tensor.digest().ok().map(|digest| PayloadPart::Host(HostValue::Int(digest.cast_signed())))
    }
}

impl Part for SpecPart {
    fn of_tag(tag: usize) -> Self {
        SpecPart::Tag(tag)
    }

    fn spec(&self) -> SpecPart {
        self.clone()
    }

    fn narrow(&self, axis: usize, _: usize, places: usize) -> Self {
        let mut part = self.clone();
        if let SpecPart::Tensor(tensor) = &mut part {
            tensor.dims.iter_mut().skip(axis).take(1).for_each(|size| *size = size.map(|size| size / places));
        }
        part
    }

    fn digest(&self) -> Option<Self> {
        None
    }
}
