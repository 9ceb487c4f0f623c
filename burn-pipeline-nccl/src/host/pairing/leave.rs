//! Ranks that leave while others continue.

use super::{Action, Bound, Channel, Note, Pairing};

impl Pairing {
    /// Returns true if this rank is bound to no group, so that it may leave.
    pub(crate) fn is_free(&self) -> bool {
        self.bound == Bound::Free
    }

    /// Tells all ranks that this one leaves. It must be free, and receives nothing more.
    pub(crate) fn leave(&self) -> Vec<Action> {
        let others = (0..self.channels.len()).filter(|&rank| rank != self.rank && !self.channels[rank].left);
        let note = || Note::Leave { launched: self.launched.iter().map(|(&group, &rounds)| (group, rounds)).collect() };
        others.map(|rank| Action::Send(rank, note())).collect()
    }

    /// Returns true if a rank has left.
    pub(crate) fn has_left(&self, rank: usize) -> bool {
        self.channels[rank].left
    }

    /// Launches nothing more with a rank that has left, except a collective that this rank is bound to and that one
    /// has `launched`.
    pub(super) fn forget(&mut self, rank: usize, launched: &[(u32, u64)]) {
        self.channels[rank] = Channel { left: true, ..Channel::default() };
        self.waiting.retain(|(from, _)| *from != rank);
        self.early.retain(|(from, ..)| *from != rank);
        let called = match self.bound {
            Bound::Called { group, round } => Some((group, round)),
            _ => None,
        };
        let started = called.filter(|(group, round)| launched.iter().any(|(of, rounds)| of == group && round < rounds));
        self.awaited
            .retain(|awaited| !awaited.members.contains(&rank) || Some((awaited.group, awaited.round)) == started);
        let ends = match self.bound {
            Bound::Free => false,
            Bound::Proposed { peer, .. } | Bound::Agreed { peer, .. } => peer == rank,
            Bound::Called { group, round } => !self.awaits(group, round),
        };
        if ends {
            self.bound = Bound::Free;
        }
    }
}
