//! Collectives: all parts go to the highest member, then the launch goes down.

use super::{Action, Lane, Note, Turns};

/// A collective that this rank takes part in and has neither launched nor ended.
#[derive(Debug)]
pub(super) struct Awaited {
    pub(super) group: u32,
    pub(super) round: u64,
    /// In ascending order.
    pub(super) members: Vec<usize>,
    /// At the highest member: the parts that have arrived.
    parts: Vec<Option<Vec<u8>>>,
}

impl Awaited {
    fn put(&mut self, from: usize, part: Vec<u8>) -> bool {
        let place = self.members.iter().position(|&member| member == from);
        let place = place.filter(|&place| self.parts[place].is_none());
        place.map(|place| self.parts[place] = Some(part)).is_some()
    }
}

impl Turns {
    /// This rank is ready for a collective; `part` describes its part. `members` are in ascending order and contain
    /// this rank.
    pub(crate) fn ready(&mut self, group: u32, round: u64, members: &[usize], part: Vec<u8>) -> Vec<Action> {
        let mut awaited = Awaited { group, round, members: members.to_vec(), parts: vec![None; members.len()] };
        let highest = members.last().copied().filter(|&highest| highest != self.rank);
        if highest.is_none() {
            awaited.put(self.rank, part.clone());
            for (from, of, at, part) in std::mem::take(&mut self.early) {
                match (of, at) == (group, round) {
                    true => drop(awaited.put(from, part)),
                    false => self.early.push((from, of, at, part)),
                }
            }
        }
        self.awaited.push(awaited);
        match highest {
            Some(highest) => vec![Action::Send(highest, Note::Part { group, round, part })],
            None => self.begin(group, round),
        }
    }

    /// Returns true if this rank is ready for a collective that it has neither launched nor ended.
    pub(crate) fn awaits(&self, group: u32, round: u64) -> bool {
        self.place(group, round).is_some()
    }

    fn place(&self, group: u32, round: u64) -> Option<usize> {
        self.awaited.iter().position(|awaited| (awaited.group, awaited.round) == (group, round))
    }

    /// A member's part has arrived, at the highest member.
    pub(super) fn part(&mut self, from: usize, group: u32, round: u64, part: Vec<u8>) -> Option<Vec<Action>> {
        if from > self.rank {
            return None;
        }
        let Some(place) = self.place(group, round) else {
            self.early.push((from, group, round, part));
            return Some(Vec::new());
        };
        let awaited = &mut self.awaited[place];
        let fits = awaited.members.last() == Some(&self.rank) && awaited.put(from, part);
        fits.then(|| self.begin(group, round))
    }

    /// As the highest member: launches or ends a collective whose parts are all here.
    fn begin(&mut self, group: u32, round: u64) -> Vec<Action> {
        let whole = |awaited: &Awaited| awaited.parts.iter().all(Option::is_some);
        let Some(place) = self.place(group, round).filter(|&place| whole(&self.awaited[place])) else {
            return Vec::new();
        };
        let parts: Vec<Vec<u8>> = self.awaited[place].parts.iter().flatten().cloned().collect();
        let (parts, launches) = (self.join)(&parts);
        if launches {
            return self.pass_on(place, parts, self.asks);
        }
        let members = self.take(place).members;
        let others = members.into_iter().filter(|&member| member != self.rank);
        let send = |member| Action::Send(member, Note::End { group, round, parts: parts.clone() });
        others.map(send).chain([Action::End { group, round, parts: parts.clone() }]).collect()
    }

    /// All higher members have launched a collective.
    pub(super) fn launch(
        &mut self,
        from: usize,
        group: u32,
        round: u64,
        parts: Vec<u8>,
        answer: bool,
    ) -> Option<Vec<Action>> {
        let next = |awaited: &Awaited| awaited.members.iter().find(|&&member| member > self.rank) == Some(&from);
        let place = self.place(group, round).filter(|&place| next(&self.awaited[place]))?;
        Some(self.pass_on(place, parts, answer))
    }

    /// Launches a collective and passes it on to the next lower member. The lowest one tells all, if it is asked to.
    fn pass_on(&mut self, place: usize, parts: Vec<u8>, answer: bool) -> Vec<Action> {
        let Awaited { group, round, members, .. } = self.take(place);
        let Some(&next) = members.iter().rev().find(|&&member| member < self.rank) else {
            let others = members.into_iter().filter(|&member| member != self.rank && answer);
            let tell = others.map(|member| Action::Send(member, Note::Whole { group: Some(group) }));
            let launch = Action::Collective { group, round, parts, next: None };
            return std::iter::once(launch).chain(tell).chain([Action::Whole(Lane::Set(group))]).collect();
        };
        *self.ahead.entry(group).or_default() += u64::from(answer);
        let note = Note::Launch { group, round, parts: parts.clone(), answer };
        vec![Action::Collective { group, round, parts, next: Some((next, note)) }]
    }

    /// All members have launched the oldest collective of a group of which that was not known.
    pub(super) fn whole_collective(&mut self, group: u32) -> Option<Vec<Action>> {
        let ahead = self.ahead.get_mut(&group)?;
        *ahead = ahead.checked_sub(1)?;
        Some(vec![Action::Whole(Lane::Set(group))])
    }

    /// The highest member has ended a collective without a launch.
    pub(super) fn end(&mut self, from: usize, group: u32, round: u64, parts: Vec<u8>) -> Option<Vec<Action>> {
        let highest = |awaited: &Awaited| awaited.members.last() == Some(&from);
        let place = self.place(group, round).filter(|&place| highest(&self.awaited[place]))?;
        self.take(place);
        Some(vec![Action::End { group, round, parts }])
    }

    fn take(&mut self, place: usize) -> Awaited {
        let awaited = self.awaited.remove(place);
        self.ended.insert(awaited.group, awaited.round + 1);
        awaited
    }
}
