//! The parts of messages, and the marks of pieces among them.

use crate::payload::{AnyTensor, CutOver, HostValue, Payload, PayloadPart, PayloadSpec, SpecPart, TensorSpec};

/// Returns how each tensor is cut, in order.
pub(in crate::execute) fn cuts(value: &Payload) -> Vec<Option<CutOver>> {
    let mut mark = None;
    let cut = |part: &PayloadPart| match part {
        PayloadPart::Tag(tag) => {
            mark = CutOver::of(*tag);
            None
        }
        PayloadPart::Tensor(_) => Some(mark.take()),
        PayloadPart::Host(_) => None,
    };
    value.parts().filter_map(cut).collect()
}

/// Marks a list of optional gradients like the tensors that they belong to.
pub(super) fn marked(gradients: Vec<PayloadPart>, cuts: &[Option<CutOver>]) -> Vec<PayloadPart> {
    // The list begins with its length; each gradient is preceded by a tag that says whether it is present.
    let mut tags = 0;
    let mark = |part: PayloadPart| {
        let is_tensor = matches!(part, PayloadPart::Tensor(_));
        tags += usize::from(!is_tensor);
        let cut = cuts.get(usize::wrapping_sub(tags, 2)).copied().flatten().filter(|_| is_tensor);
        cut.map(|cut| PayloadPart::Tag(cut.tag())).into_iter().chain([part])
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

/// The slice `place` of `places` equal ones of a tensor, along an axis that divides evenly.
pub(super) fn slice(tensor: &AnyTensor, axis: usize, place: usize, places: usize) -> AnyTensor {
    if places == 1 {
        return tensor.clone();
    }
    let each = tensor.shape()[axis] / places;
    tensor.clone().narrow(axis, place * each, (place + 1) * each)
}

/// A hash of a tensor's elements, if its device can be read.
pub(super) fn digest(tensor: &AnyTensor) -> Option<HostValue> {
    // A device that cannot be read reports it where its tensors are used.
    tensor.digest().ok().map(|digest| HostValue::Int(digest.cast_signed()))
}
