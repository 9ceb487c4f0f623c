//! What messages are lists of, and the marks of pieces among them.
//!
//! A payload and its spec are re-cut by the same code, so that what is expected is what is sent.

use crate::stage::{CutOver, HostValue, Payload, PayloadPart, PayloadSpec, SpecPart, TensorSpec};

/// One entry of a payload, or of a payload's spec.
pub(in crate::execute) trait Part: Clone {
    /// A tag.
    fn of_tag(tag: usize) -> Self;

    /// What it is, without values.
    fn spec(&self) -> SpecPart;

    /// Its place `place` of `places` along an axis that can be cut evenly; of a tensor alone.
    fn narrow(&self, axis: usize, place: usize, places: usize) -> Self;

    /// A hash of a tensor's elements, where they are known.
    fn digest(&self) -> Option<Self>;
}

/// How each tensor is cut, in their order.
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

/// A list of optional gradients, marked like the tensors that they belong to.
pub(in crate::execute) fn marked<P: Part>(gradients: Vec<P>, cuts: &[Option<CutOver>]) -> Vec<P> {
    // The length of the list comes first, then whether each of its gradients is there.
    let mut tags = 0;
    let mark = |part: P| {
        let is_tensor = matches!(part.spec(), SpecPart::Tensor(_));
        tags += usize::from(!is_tensor);
        let cut = cuts.get(usize::wrapping_sub(tags, 2)).copied().flatten().filter(|_| is_tensor);
        cut.map(|cut| P::of_tag(cut.tag())).into_iter().chain([part])
    };
    gradients.into_iter().flat_map(mark).collect()
}

/// The same without marks.
pub(in crate::execute) fn unmarked(gradients: Payload) -> Payload {
    let is_mark = |part: &PayloadPart| matches!(part, PayloadPart::Tag(tag) if CutOver::of(*tag).is_some());
    Payload::from_parts(gradients.into_parts().filter(|part| !is_mark(part)))
}

/// A piece in words, with the whole tensor's shape.
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
        // A device that cannot be read says so where its tensors are used.
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
