//! Re-cutting on one rank, where stages are measured without a link.

use super::cut::Recut;
use crate::payload::Payload;
use crate::stage::StageError;

/// What the first of `receivers` ranks gets of a value, if all senders have equal values and equal pieces.
///
/// # Errors
/// Returns [`StageError::CutUnevenly`] or [`StageError::CutOtherwise`] for a piece that cannot be re-cut.
pub(crate) fn received_by_first(senders: usize, receivers: usize, value: Payload) -> Result<Payload, StageError> {
    let (recut, sends) = (Recut { senders, receivers }, 0..(senders / receivers).max(1));
    let first = |member| Ok(recut.messages(member, value.clone(), None, false)?.swap_remove(0));
    recut.join(sends.clone(), sends.map(first).collect::<Result<_, StageError>>()?)
}
