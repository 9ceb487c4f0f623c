//! Collectives in the order of transfers: all members are ready, a call goes upwards, the highest member sends the
//! start.

use super::{Action, Bound, Note, Pairing};

/// A collective that this rank takes part in and has not launched yet.
#[derive(Debug)]
pub(super) struct Awaited {
    pub(super) group: u32,
    pub(super) round: u64,
    pub(super) members: Vec<usize>,
    /// At the lowest member: the parts that have arrived.
    pub(super) parts: Vec<Option<Vec<u8>>>,
}

impl Awaited {
    pub(super) fn put(&mut self, from: usize, part: Vec<u8>) {
        if let Some(place) = self.members.iter().position(|&member| member == from) {
            self.parts[place] = Some(part);
        }
    }
}

impl Pairing {
    /// This rank is ready for a collective; `part` describes its part. `members` are in ascending order and contain
    /// this rank.
    pub(crate) fn ready(&mut self, group: u32, round: u64, members: &[usize], part: Vec<u8>) -> Vec<Action> {
        let mut awaited = Awaited { group, round, members: members.to_vec(), parts: vec![None; members.len()] };
        if awaited.members.first() == Some(&self.rank) {
            awaited.parts[0] = Some(part);
            for (from, of, at, part) in std::mem::take(&mut self.early) {
                match (of, at) == (group, round) {
                    true => awaited.put(from, part),
                    false => self.early.push((from, of, at, part)),
                }
            }
        } else if let Some(&lowest) = awaited.members.first() {
            self.actions.push(Action::Send(lowest, Note::Ready { group, round, part }));
        }
        self.awaited.push(awaited);
        self.proceed()
    }

    /// Returns true if this rank is ready for a collective that it may still launch.
    pub(crate) fn awaits(&self, group: u32, round: u64) -> bool {
        self.awaited.iter().any(|awaited| (awaited.group, awaited.round) == (group, round))
    }

    /// As the lowest member of a collective that all members are ready for: sends the call.
    pub(super) fn begin_collective(&mut self) -> bool {
        let whole = |awaited: &Awaited| awaited.parts.iter().all(Option::is_some);
        let Some(awaited) = self.awaited.iter().find(|awaited| whole(awaited)) else { return false };
        let parts: Vec<Vec<u8>> = awaited.parts.iter().flatten().cloned().collect();
        let (group, round, joined) = (awaited.group, awaited.round, (self.join)(&parts));
        self.pass_on(group, round, joined);
        true
    }

    /// Binds this rank to a collective and passes the call to the next member; the last member sends the start.
    pub(super) fn pass_on(&mut self, group: u32, round: u64, parts: Vec<u8>) {
        let awaited = self.awaited.iter().find(|awaited| (awaited.group, awaited.round) == (group, round));
        let Some(members) = awaited.map(|awaited| awaited.members.clone()) else { return };
        self.called.clone_from(&parts);
        match members.iter().find(|&&member| member > self.rank) {
            Some(&next) => {
                self.bound = Bound::Called { group, round };
                self.actions.push(Action::Send(next, Note::Call { group, round, parts }));
            }
            None => {
                let others = members.iter().filter(|&&member| member != self.rank);
                self.actions.extend(others.map(|&member| Action::Send(member, Note::Start { group, round })));
                self.launch(group, round);
            }
        }
    }

    pub(super) fn launch(&mut self, group: u32, round: u64) {
        self.awaited.retain(|awaited| (awaited.group, awaited.round) != (group, round));
        self.launched.insert(group, round + 1);
        self.actions.push(Action::Collective { group, round, parts: std::mem::take(&mut self.called) });
    }
}
