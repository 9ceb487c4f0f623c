//! Ranks that leave while others go on.

use super::{Action, Bound, Channel, Note, Pairing};

impl Pairing {
    /// Whether this rank is bound to no group, so that it may leave.
    pub(crate) fn is_free(&self) -> bool {
        self.bound == Bound::Free
    }

    /// Tells all ranks that this one leaves. It must be free, and receives nothing more.
    pub(crate) fn leave(&self) -> Vec<Action> {
        let others = (0..self.channels.len()).filter(|&rank| rank != self.rank && !self.channels[rank].left);
        others.map(|rank| Action::Send(rank, Note::Leave)).collect()
    }

    /// Whether a rank has left.
    pub(crate) fn has_left(&self, rank: usize) -> bool {
        self.channels[rank].left
    }

    /// Launches nothing more with a rank.
    pub(super) fn forget(&mut self, rank: usize) {
        self.channels[rank] = Channel { left: true, ..Channel::default() };
        self.waiting.retain(|(from, _)| *from != rank);
        self.early.retain(|(from, ..)| *from != rank);
        let bound = match &self.bound {
            Bound::Free => false,
            Bound::Proposed { peer, .. } | Bound::Agreed { peer, .. } => *peer == rank,
            Bound::Called { group, round } => {
                let mut awaited = self.awaited.iter().filter(|a| (a.group, a.round) == (*group, *round));
                awaited.any(|awaited| awaited.members.contains(&rank))
            }
        };
        if bound {
            self.bound = Bound::Free;
        }
        self.awaited.retain(|awaited| !awaited.members.contains(&rank));
    }
}
