//! What a member of a group sends to each of its counterparts.

use super::part::{described, digest, marked, slice};
use crate::payload::{AnyTensor, CutOver, Payload, PayloadPart, TensorSpec};
use crate::ranks::Grid;
use crate::stage::StageError;

/// The sizes of the groups at the two ends of a boundary.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::execute) struct Recut {
    pub(super) senders: usize,
    pub(super) receivers: usize,
}

/// How a message treats tensors and plain values that are not cut.
#[derive(Clone, Copy)]
enum Whole {
    Sent,
    /// Hashes of the tensors.
    Hashed,
    LeftOut,
}

impl Recut {
    /// The group sizes of two pipeline ranks.
    pub(in crate::execute) fn between(grid: &Grid, from: usize, to: usize) -> Self {
        Self { senders: grid.size_of(from), receivers: grid.size_of(to) }
    }

    /// Returns true if nothing is re-cut.
    pub(in crate::execute) fn is_even(self) -> bool {
        self.senders == self.receivers
    }

    /// The messages of a member of the sending group to each of its counterparts, in their order. For gradients,
    /// `cuts` says how the tensors that they belong to are cut. If `compared`, they contain hashes of replicated
    /// tensors that the member does not send.
    ///
    /// # Errors
    /// Returns [`StageError::CutUnevenly`] or [`StageError::CutOtherwise`] for a piece that cannot be re-cut.
    pub(in crate::execute) fn messages(
        self,
        member: usize,
        value: Payload,
        cuts: Option<&[Option<CutOver>]>,
        compared: bool,
    ) -> Result<Vec<Payload>, StageError> {
        if self.is_even() {
            return Ok(vec![value]);
        }
        let parts: Vec<_> = value.into_parts().collect();
        let parts = if let Some(cuts) = cuts { marked(parts, cuts) } else { parts };
        let places = (self.receivers / self.senders).max(1);
        // The first of a receiver's senders sends what is equal on all of them.
        let whole = match member.is_multiple_of((self.senders / self.receivers).max(1)) {
            true => Whole::Sent,
            false if compared => Whole::Hashed,
            false => Whole::LeftOut,
        };
        (0..places).map(|place| self.message(&parts, (place, places), whole)).collect()
    }

    /// The message with the given place of each piece.
    fn message(
        self,
        parts: &[PayloadPart],
        (place, places): (usize, usize),
        whole: Whole,
    ) -> Result<Payload, StageError> {
        let (mut message, mut cut) = (Vec::with_capacity(parts.len()), None);
        for part in parts {
            match (part, cut.take()) {
                (PayloadPart::Tag(tag), _) => {
                    cut = CutOver::of(*tag);
                    let marked = |cut: CutOver| CutOver { ranks: cut.ranks * places, ..cut }.tag();
                    message.push(PayloadPart::Tag(cut.map_or(*tag, marked)));
                }
                (PayloadPart::Tensor(tensor), Some(cut)) => {
                    self.refuse_piece(tensor, cut, places)?;
                    message.push(PayloadPart::Tensor(slice(tensor, cut.axis, place, places)));
                }
                (part, _) => message.extend(match (whole, part) {
                    (Whole::Sent, part) => Some(part.clone()),
                    (Whole::Hashed, PayloadPart::Tensor(tensor)) => digest(tensor).map(PayloadPart::Host),
                    (Whole::Hashed | Whole::LeftOut, _) => None,
                }),
            }
        }
        Ok(Payload::from_parts(message))
    }

    fn refuse_piece(self, tensor: &AnyTensor, cut: CutOver, places: usize) -> Result<(), StageError> {
        let piece = || described(&TensorSpec::of(tensor), cut);
        if cut.ranks != self.senders {
            return Err(StageError::CutOtherwise { piece: piece(), ranks: self.senders });
        }
        match tensor.shape().get(cut.axis) {
            Some(size) if size.is_multiple_of(places) => Ok(()),
            _ => Err(StageError::CutUnevenly { piece: piece(), ranks: self.receivers }),
        }
    }
}
