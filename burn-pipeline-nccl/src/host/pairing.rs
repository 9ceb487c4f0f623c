//! The order in which ranks put transfers into their queues, so that no two queues wait for each other.
//!
//! A transfer between GPUs occupies the queues of both ranks until both have reached it. If rank 0 queues "send to
//! 1" before "receive from 1" and rank 1 queues "send to 0" before "receive from 0", both wait forever; with three
//! ranks the circle can be longer.
//!
//! Guarantees, whatever the ranks send and whenever: (1) both ends of a transfer put it into a group with the same
//! other transfers; (2) the orders of all queues are parts of one order of groups, so queues never wait in a
//! circle; (3) every offered transfer is launched after finitely many notes; (4) no rank launches a group before
//! the memory for all of its transfers exists on both ranks. Proofs are below.
//!
//! 1. A sender offers a transfer (its frame goes to the receiver) and continues to compute. The receiver allocates
//!    the memory for it before it passes the offer to this module: that may take as long as compiling a kernel.
//! 2. Between two ranks, the lower one proposes a group once there is an offer in either direction: "all that I
//!    offered so far". From then on it is bound: it launches nothing else until the other rank has agreed.
//! 3. The higher rank agrees as soon as it is not bound itself: "and all that I offered so far". Then it is bound
//!    as well. When the agreement arrives, the lower rank says go and launches the group; the higher rank launches
//!    it when it reads the go. Opposing transfers of one tick are in one group.
//! 4. For a collective, all members report to the lowest member that they are ready. Then a call goes upwards from
//!    member to member; each is bound from when it passes on the call. The highest member sends a start to all, and
//!    all launch.
//! 5. A rank that leaves does so while it is free, and tells all others, with the collectives that it has launched.
//!    They launch nothing more with it, and ranks that were bound to a group with it are free again, except for a
//!    collective that it has launched.
//!
//! (1) Notes and offers of one rank to another keep their order, so when a proposal or an agreement is read, all
//! offers that it counts are known.
//!
//! (2) Take the moment at which the highest member of a group binds itself (for pairs: agrees). At that moment
//! every other member is bound to this group, and has been since its last launch. So on every rank the launches
//! follow the order of these moments, which is one order of all groups.
//!
//! (3) A bound rank waits for a higher rank, which is free, or bound and waiting for a still higher one; the
//! highest never waits, so all become free. A rank that has agreed waits for a lower one, which says go when it
//! reads the agreement, whatever else it waits for. A free rank answers waiting ranks in the order of arrival,
//! before it proposes anything itself.
//!
//! (4) An offer is read only after its memory was allocated. The higher rank has read the lower one's offers when
//! it agrees, and the lower rank has read the higher one's when it says go, before either launches.
//!
//! Leaving: a rank that reads that another one has left may be bound to a group with it. Either the leaver had not
//! bound itself, since it was free when it left; then nobody has launched the group, and nobody will. Or the leaver
//! has launched the group. Then it is not a pair: its lower rank says go before it leaves, and its higher rank
//! leaves only after the lower one has launched. It is a collective whose members launch without each other,
//! because it is refused or has no tensors. Then the start from the highest member is on its way, since the leaver
//! has received it, and is waited for.

mod collective;
mod expected;
mod leave;
mod note;
mod state;
#[cfg(test)]
mod tests;

pub(crate) use note::Note;

use collective::Awaited;
use state::{Bound, Channel};
use std::collections::{BTreeMap, VecDeque};

/// What the rank does next. Several actions are done in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    /// Send a note to a rank.
    Send(usize, Note),
    /// Launch these transfers with a rank, as one group: `sends` of the offers that this rank made, oldest first,
    /// and `receives` of the offers that it got.
    Exchange { peer: usize, sends: usize, receives: usize },
    /// Launch this collective; the bytes describe all parts.
    Collective { group: u32, round: u64, parts: Vec<u8> },
}

/// Joins the parts of a collective, in rank order.
pub(crate) type Join = fn(&[Vec<u8>]) -> Vec<u8>;

/// One rank's side of the agreement.
#[derive(Debug)]
pub(crate) struct Pairing {
    rank: usize,
    channels: Vec<Channel>,
    bound: Bound,
    /// Proposals of lower ranks, and calls, that arrived while this rank was bound or not ready for the collective.
    waiting: VecDeque<(usize, Note)>,
    /// Collectives that this rank is ready for, oldest first.
    awaited: Vec<Awaited>,
    /// Ready members of collectives that this rank, their lowest member, has not reached.
    early: Vec<(usize, u32, u64, Vec<u8>)>,
    /// The parts of all members, for the collective that this rank is bound to.
    called: Vec<u8>,
    /// The number of launched collectives of each group.
    launched: BTreeMap<u32, u64>,
    join: Join,
    actions: Vec<Action>,
    /// The rank at which the next search for open offers begins, so that every rank is served in turn.
    next: usize,
}

impl Pairing {
    pub(crate) fn new(rank: usize, ranks: usize, join: Join) -> Self {
        Self {
            rank,
            channels: vec![Channel::default(); ranks],
            bound: Bound::Free,
            waiting: VecDeque::new(),
            awaited: Vec::new(),
            early: Vec::new(),
            called: Vec::new(),
            launched: BTreeMap::new(),
            join,
            actions: Vec::new(),
            next: rank + 1,
        }
    }

    /// This rank has offered a transfer to a rank; the offer itself is already on its way.
    pub(crate) fn offer(&mut self, to: usize) -> Vec<Action> {
        self.channels[to].offered += 1;
        if to == self.rank {
            self.channels[to].got += 1;
        }
        self.proceed()
    }

    /// A rank's offer has arrived.
    pub(crate) fn offered(&mut self, from: usize) -> Vec<Action> {
        self.channels[from].got += 1;
        self.proceed()
    }

    /// A rank's note has arrived.
    ///
    /// # Errors
    /// Returns an error if a correct rank would not send this note now. Nothing is done then.
    pub(crate) fn receive(&mut self, from: usize, note: Note) -> Result<Vec<Action>, String> {
        if !self.is_expected(from, &note) {
            return Err(format!(
                "rank {from} sent {note:?}, which no rank sends now; check that all ranks run the same build"
            ));
        }
        match note {
            Note::Propose { .. } | Note::Call { .. } => self.waiting.push_back((from, note)),
            Note::Agree { offered } => {
                if let Bound::Proposed { peer, offered: own } = self.bound
                    && peer == from
                {
                    self.bound = Bound::Free;
                    self.actions.push(Action::Send(peer, Note::Go));
                    self.exchange(peer, own, offered);
                }
            }
            Note::Go => {
                if let Bound::Agreed { peer, own, theirs } = self.bound
                    && peer == from
                {
                    self.bound = Bound::Free;
                    self.exchange(peer, own, theirs);
                }
            }
            Note::Ready { group, round, part } => {
                match self.awaited.iter_mut().find(|awaited| (awaited.group, awaited.round) == (group, round)) {
                    Some(awaited) => awaited.put(from, part),
                    None => self.early.push((from, group, round, part)),
                }
            }
            Note::Start { group, round } => {
                if self.bound == (Bound::Called { group, round }) {
                    self.bound = Bound::Free;
                    self.launch(group, round);
                }
            }
            Note::Leave { launched } => self.forget(from, &launched),
        }
        Ok(self.proceed())
    }

    /// Does everything that can be done now.
    fn proceed(&mut self) -> Vec<Action> {
        while self.bound == Bound::Free && self.advance() {}
        std::mem::take(&mut self.actions)
    }

    /// Does one thing that a free rank can do. Returns false if there is none.
    fn advance(&mut self) -> bool {
        self.answer() || self.begin_collective() || self.exchange_with_itself() || self.propose()
    }

    /// Answers the oldest waiting note that can be answered.
    fn answer(&mut self) -> bool {
        let answerable = |(_, note): &(usize, Note)| match note {
            Note::Call { group, round, .. } => self.awaits(*group, *round),
            _ => true,
        };
        let Some(place) = self.waiting.iter().position(answerable) else { return false };
        match self.waiting.remove(place) {
            Some((from, Note::Propose { offered })) => {
                let own = self.channels[from].offered;
                self.actions.push(Action::Send(from, Note::Agree { offered: own }));
                self.bound = Bound::Agreed { peer: from, own, theirs: offered };
            }
            Some((_, Note::Call { group, round, parts })) => self.pass_on(group, round, parts),
            _ => {}
        }
        true
    }

    fn exchange_with_itself(&mut self) -> bool {
        let own = &self.channels[self.rank];
        let (open, offered) = (own.has_open_offers(), own.offered);
        if open {
            self.exchange(self.rank, offered, offered);
        }
        open
    }

    /// Proposes a group to the next higher rank with open offers.
    fn propose(&mut self) -> bool {
        let (first, ranks) = (self.rank + 1, self.channels.len());
        let higher = ranks - first;
        let next = (0..higher).map(|step| first + (self.next - first + step) % higher);
        let Some(peer) = next.into_iter().find(|&peer| self.channels[peer].has_open_offers()) else { return false };
        self.next = if peer + 1 < ranks { peer + 1 } else { first };
        let offered = self.channels[peer].offered;
        self.bound = Bound::Proposed { peer, offered };
        self.actions.push(Action::Send(peer, Note::Propose { offered }));
        true
    }

    /// Launches all own offers up to `own`, and the other rank's up to `theirs`.
    fn exchange(&mut self, peer: usize, own: u64, theirs: u64) {
        let channel = &mut self.channels[peer];
        let (sends, receives) = ((own - channel.sent) as usize, theirs.saturating_sub(channel.received) as usize);
        (channel.sent, channel.received) = (own, theirs.max(channel.received));
        if sends + receives > 0 {
            self.actions.push(Action::Exchange { peer, sends, receives });
        }
    }
}
