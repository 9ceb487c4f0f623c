//! Which notes a correct rank can send, and when.

use super::{Bound, Note, Pairing};

impl Pairing {
    /// Returns true if a correct rank can send this note now.
    pub(super) fn is_expected(&self, from: usize, note: &Note) -> bool {
        // An offer arrives before the note that counts it.
        let counts = |offered: &u64| {
            self.channels.get(from).is_some_and(|channel| (channel.received..=channel.got).contains(offered))
        };
        if self.channels.get(from).is_none_or(|channel| channel.left) {
            return false;
        }
        match note {
            Note::Leave { .. } => from != self.rank,
            Note::Propose { offered } => from < self.rank && counts(offered),
            Note::Agree { offered } => {
                matches!(self.bound, Bound::Proposed { peer, .. } if peer == from) && counts(offered)
            }
            Note::Go => matches!(self.bound, Bound::Agreed { peer, .. } if peer == from),
            Note::Ready { group, round, .. } => {
                let known = self.awaited.iter().find(|awaited| (awaited.group, awaited.round) == (*group, *round));
                from > self.rank && known.is_none_or(|awaited| awaited.members.contains(&from))
            }
            Note::Call { .. } => from < self.rank,
            Note::Start { group, round } => {
                from > self.rank && self.bound == (Bound::Called { group: *group, round: *round })
            }
        }
    }
}
