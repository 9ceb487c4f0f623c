//! Ranks that leave while others continue.

use super::{Action, Note, Peer, Turns};
use std::collections::BTreeSet;

impl Turns {
    /// Tells all ranks that this one leaves. Nothing may be left to send or to launch.
    pub(crate) fn leave(&mut self) -> Vec<Action> {
        let others = (0..self.peers.len()).filter(|&rank| rank != self.rank && !self.peers[rank].left);
        let others: BTreeSet<usize> = others.collect();
        let note = Note::Leave { ended: self.ended.iter().map(|(&group, &rounds)| (group, rounds)).collect() };
        let actions = others.iter().map(|&rank| Action::Send(rank, note.clone())).collect();
        self.unanswered = Some(others);
        actions
    }

    /// After [`Turns::leave`]: the ranks that have not answered.
    pub(crate) fn unanswered(&self) -> Option<&BTreeSet<usize>> {
        self.unanswered.as_ref()
    }

    /// Returns true if a rank has left.
    pub(crate) fn has_left(&self, rank: usize) -> bool {
        self.peers[rank].left
    }

    /// Launches nothing more with a rank that leaves, except collectives that it has launched or ended: their notes
    /// are on the way.
    pub(super) fn forget(&mut self, rank: usize, ended: &[(u32, u64)]) -> Vec<Action> {
        self.peers[rank] = Peer { left: true, ahead: self.peers[rank].ahead, offered: 0 };
        self.early.retain(|(from, ..)| *from != rank);
        let has_ended = |group: u32, round: u64| ended.iter().any(|&(of, rounds)| of == group && round < rounds);
        self.awaited.retain(|awaited| !awaited.members.contains(&rank) || has_ended(awaited.group, awaited.round));
        vec![Action::Send(rank, Note::Answer)]
    }
}
