//! Joins a value from its messages; also where both ends are one rank, which measures stages without a link.

use super::cut::Recut;
use super::part::{described, digest};
use crate::payload::{AnyTensor, CutOver, Payload, PayloadPart, SpecPart, TensorSpec};
use crate::stage::StageError;
use std::iter::Peekable;
use std::ops::Range;

impl Recut {
    /// Joins the messages of the counterparts whose ranks in the job are `from`.
    ///
    /// # Errors
    /// Returns [`StageError::Unjoined`] if the messages are not of one value, [`StageError::MembersUnlike`] if
    /// replicated tensors differ.
    pub(in crate::execute) fn join(self, from: Range<usize>, messages: Vec<Payload>) -> Result<Payload, StageError> {
        let (places, mut messages) = (from.len(), messages.into_iter());
        let first = messages.next().unwrap_or_default();
        if places < 2 {
            return Ok(first);
        }
        let others = (from.start + 1..).zip(messages.map(|message| message.into_parts().peekable())).collect();
        let (mut beside, mut value, mut cut) = (Beside { first: from.start, others }, Vec::new(), None);
        for part in first.into_parts() {
            value.push(match (part, cut.take()) {
                (PayloadPart::Tag(tag), _) => {
                    beside.tags(tag)?;
                    cut = CutOver::of(tag);
                    let joined = |cut: CutOver| CutOver { ranks: cut.ranks / places, ..cut }.tag();
                    PayloadPart::Tag(cut.map_or(tag, joined))
                }
                (PayloadPart::Tensor(own), Some(cut)) => PayloadPart::Tensor(beside.join(own, cut)?),
                (PayloadPart::Tensor(own), None) => PayloadPart::Tensor(beside.compared(own)?),
                (part, _) => part,
            });
        }
        beside.ended()?;
        Ok(Payload::from_parts(value))
    }
}

/// What the first of `receivers` ranks gets of a value, if all senders have equal values and equal pieces.
///
/// # Errors
/// Returns [`StageError::CutUnevenly`] or [`StageError::CutOtherwise`] for a piece that cannot be re-cut.
pub(crate) fn received_by_first(senders: usize, receivers: usize, value: Payload) -> Result<Payload, StageError> {
    let (recut, sends) = (Recut { senders, receivers }, 0..(senders / receivers).max(1));
    let first = |member| Ok(recut.messages(member, value.clone(), None, false)?.swap_remove(0));
    recut.join(sends.clone(), sends.map(first).collect::<Result<_, StageError>>()?)
}

/// The other messages of a value, read in parallel with the first.
struct Beside<I: Iterator> {
    /// The rank that sent the first message.
    first: usize,
    others: Vec<(usize, Peekable<I>)>,
}

impl<I: Iterator<Item = PayloadPart>> Beside<I> {
    /// Returns the next part of all other messages, if it fits the first message's.
    fn next(
        &mut self,
        ours: impl Fn() -> String,
        fits: impl Fn(Option<&PayloadPart>) -> bool,
    ) -> Result<Vec<PayloadPart>, StageError> {
        let mut all = Vec::with_capacity(self.others.len() + 1);
        for (other, parts) in &mut self.others {
            let part = parts.next();
            if !fits(part.as_ref()) {
                let theirs = part.map_or_else(|| "nothing".to_owned(), |part| in_words(&SpecPart::of(&part)));
                return Err(StageError::Unjoined { first: self.first, other: *other, ours: ours(), theirs });
            }
            all.extend(part);
        }
        Ok(all)
    }

    fn tags(&mut self, tag: usize) -> Result<(), StageError> {
        let same = |part: Option<&PayloadPart>| matches!(part, Some(PayloadPart::Tag(theirs)) if *theirs == tag);
        self.next(|| in_words(&SpecPart::Tag(tag)), same).map(drop)
    }

    /// Joins the first message's piece with the next pieces of the others.
    fn join(&mut self, own: AnyTensor, cut: CutOver) -> Result<AnyTensor, StageError> {
        let spec = TensorSpec::of(&own);
        let alike = |part: Option<&PayloadPart>| match part {
            Some(PayloadPart::Tensor(piece)) => TensorSpec::of(piece) == spec && cut.axis < spec.dims.len(),
            _ => false,
        };
        let pieces = self.next(|| described(&spec, cut), alike)?.into_iter().filter_map(|part| match part {
            PayloadPart::Tensor(piece) => Some(piece),
            PayloadPart::Host(_) | PayloadPart::Tag(_) => None,
        });
        // There is at least the first message's piece.
        Ok(AnyTensor::cat(std::iter::once(own.clone()).chain(pieces).collect(), cut.axis).unwrap_or(own))
    }

    /// Returns the first message's replicated tensor, if every hash in the others equals its own.
    fn compared(&mut self, own: AnyTensor) -> Result<AnyTensor, StageError> {
        let mut ours = None;
        for (other, parts) in &mut self.others {
            let hash = parts.next_if(|part| matches!(part, PayloadPart::Host(_)));
            let Some(PayloadPart::Host(theirs)) = hash else { continue };
            let ours = ours.get_or_insert_with(|| digest(&own));
            if ours.as_ref().is_some_and(|ours| *ours != theirs) {
                let (first, tensor) = (self.first, TensorSpec::of(&own).to_string());
                return Err(StageError::MembersUnlike { first, other: *other, tensor });
            }
        }
        Ok(own)
    }

    fn ended(&mut self) -> Result<(), StageError> {
        self.next(|| "nothing more".to_owned(), |part| part.is_none()).map(drop)
    }
}

/// A part of a message in words.
fn in_words(part: &SpecPart) -> String {
    let cut = if let SpecPart::Tag(tag) = part { CutOver::of(*tag) } else { None };
    cut.map_or_else(|| part.to_string(), |cut| format!("a piece that is {cut}"))
}
