//! Who launches first: the highest rank of a transfer or collective, then the next lower one, down to the lowest.
//!
//! A transfer between GPUs runs when both ranks have launched it; until then it occupies a queue. Each direction
//! between two ranks, and each set of ranks, has a queue of its own ([`Lane`]), so transfers of different lanes do
//! not wait for each other in their queues. But some calls of CUDA wait for everything that a GPU runs (freeing memory,
//! loading a kernel's code), and block launches meanwhile. Two ranks in such calls, each with a transfer that the
//! other has not launched, would wait for ever. The turns exclude that.
//!
//! Guarantees, whatever the ranks send and whenever: (1) a rank waits only for launches of lower ranks; (2) both ends
//! launch a lane's transfers in the same order; (3) every transfer is launched after finitely many notes; (4) a
//! tensor is given out only when all ranks have launched what brings it, so work that waits for it waits only for
//! what was launched everywhere before.
//!
//! 1. A message to a lower rank is launched at once, then its frame goes out. The receiver launches it when it reads
//!    the frame. No reply is needed.
//! 2. A message to a higher rank is offered: its frame goes out first. The receiver allocates memory, launches, and
//!    says so ([`Note::Launched`]). Then the sender launches.
//! 3. For a collective, every member sends its part to the highest one, which launches it when it has all parts. Then
//!    the launch goes down from member to member ([`Note::Launch`]). A collective that is refused, or has no tensors,
//!    is not launched: the highest member sends the outcome to all.
//! 4. A rank that leaves says so, with the collectives that it has ended, and serves until all others have answered.
//!    They drop what they have offered it, launch nothing more with it, and answer. So what they had launched before
//!    is launched by the leaver too.
//!
//! (1) In steps 1 to 3 a rank launches only what all higher ranks have launched. So what it has launched, and another
//! rank has not, waits for lower ranks. They know of it: what tells them leaves right after the launch, before any
//! other call of the driver. A launch needs the launching rank's thread alone, which waits at most for its own GPU,
//! and so for lower ranks. By induction from rank 0, which waits for nobody, every launch happens. (NCCL may connect
//! the members of a set at their first collective, which needs all of them: then the next member launches meanwhile.)
//!
//! (2) Notes and frames of one rank to another keep their order, and each end launches a lane in the order in which
//! the highest rank did.
//!
//! (3) Each message needs at most two notes, each collective of `n` members at most `3 n`.
//!
//! (4) Take the moment at which the last rank launches a transfer. A launch waits on the GPU only for transfers whose
//! moment is earlier than its own, so no cycle exists.

mod collective;
mod leave;
mod note;
#[cfg(test)]
mod tests;

pub(crate) use note::Note;

use collective::Awaited;
use std::collections::{BTreeMap, BTreeSet};

/// A queue of transfers: one direction between this rank and another, or the collectives of a set of ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lane {
    To(usize),
    From(usize),
    Set(u32),
}

/// What the rank does next. Several actions are done in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    /// Send a note to a rank.
    Send(usize, Note),
    /// Launch the oldest message of a lane that is not launched. The note goes out right after that.
    Launch(Lane, Option<(usize, Note)>),
    /// Launch this collective; the bytes describe all parts. The note goes out right after that. If the launch itself
    /// waits for the next member, as NCCL's first one may, the note goes out meanwhile.
    Collective { group: u32, round: u64, parts: Vec<u8>, next: Option<(usize, Note)> },
    /// End this collective without a launch; the bytes describe all parts.
    End { group: u32, round: u64, parts: Vec<u8> },
    /// All ranks have launched the oldest transfer of a lane of which that was not known.
    Whole(Lane),
}

/// Joins the parts of a collective, in rank order. Returns also whether it is launched.
pub(crate) type Join = fn(&[Vec<u8>]) -> (Vec<u8>, bool);

/// The messages between this rank and another one.
#[derive(Debug, Clone, Default)]
struct Peer {
    /// The number of messages offered to a higher rank and not launched.
    offered: u64,
    /// The number of messages from a lower rank that only this rank is known to have launched.
    ahead: u64,
    left: bool,
}

/// One rank's side.
#[derive(Debug)]
pub(crate) struct Turns {
    rank: usize,
    /// True if this rank wants to know when all ranks have launched something.
    asks: bool,
    peers: Vec<Peer>,
    /// Collectives that this rank is ready for, oldest first.
    awaited: Vec<Awaited>,
    /// Parts of collectives whose highest member is this rank, before it is ready for them.
    early: Vec<(usize, u32, u64, Vec<u8>)>,
    /// Launched collectives of each group of which it is not known that all members have launched them.
    ahead: BTreeMap<u32, u64>,
    /// The number of collectives of each group that this rank has launched or ended.
    ended: BTreeMap<u32, u64>,
    join: Join,
    /// After this rank has said that it leaves: the ranks that have not answered.
    unanswered: Option<BTreeSet<usize>>,
}

impl Turns {
    pub(crate) fn new(rank: usize, ranks: usize, asks: bool, join: Join) -> Self {
        Self {
            rank,
            asks,
            peers: vec![Peer::default(); ranks],
            awaited: Vec::new(),
            early: Vec::new(),
            ahead: BTreeMap::new(),
            ended: BTreeMap::new(),
            join,
            unanswered: None,
        }
    }

    /// This rank sends a message to another one. Returns true if it launches the message now. The frame goes out in
    /// any case.
    pub(crate) fn send(&mut self, to: usize) -> bool {
        let now = to < self.rank;
        self.peers[to].offered += u64::from(!now);
        now
    }

    /// Returns true if a message is received whose frame has arrived. One from a lower rank is not if this rank
    /// leaves: that rank drops it.
    pub(crate) fn accepts(&self, from: usize) -> bool {
        from > self.rank || self.unanswered.is_none()
    }

    /// A message's frame has arrived, and the memory for its tensors exists.
    pub(crate) fn arrived(&mut self, from: usize) -> Vec<Action> {
        let lane = Lane::From(from);
        if from > self.rank {
            return vec![Action::Launch(lane, None), Action::Whole(lane)];
        }
        self.peers[from].ahead += u64::from(self.asks);
        vec![Action::Launch(lane, Some((from, Note::Launched { answer: self.asks })))]
    }

    /// A rank's note has arrived.
    ///
    /// # Errors
    /// Returns an error if a correct rank would not send this note now. Nothing is done then.
    pub(crate) fn receive(&mut self, from: usize, note: Note) -> Result<Vec<Action>, String> {
        let unexpected =
            || format!("rank {from} sent {note:?}, which no rank sends now; check that all ranks run the same build");
        let known = self.peers.get(from).is_some_and(|peer| !peer.left || note == Note::Answer);
        if !known || from == self.rank {
            return Err(unexpected());
        }
        let actions = match note.clone() {
            Note::Launched { answer } => self.launched(from, answer),
            Note::Whole { group: None } => self.whole(from),
            Note::Whole { group: Some(group) } => self.whole_collective(group),
            Note::Part { group, round, part } => self.part(from, group, round, part),
            Note::Launch { group, round, parts, answer } => self.launch(from, group, round, parts, answer),
            Note::End { group, round, parts } => self.end(from, group, round, parts),
            Note::Leave { ended } => Some(self.forget(from, &ended)),
            Note::Answer => self.unanswered.as_mut().is_some_and(|ranks| ranks.remove(&from)).then(Vec::new),
            // The thread that joins communicators handles it.
            Note::Connect { .. } => None,
        };
        actions.ok_or_else(unexpected)
    }

    /// A higher rank has launched its end of the oldest message that this rank has offered it.
    fn launched(&mut self, from: usize, answer: bool) -> Option<Vec<Action>> {
        let peer = &mut self.peers[from];
        peer.offered = peer.offered.checked_sub(1)?;
        let answer = answer.then_some((from, Note::Whole { group: None }));
        Some(vec![Action::Launch(Lane::To(from), answer)])
    }

    /// A lower rank has launched its end of the oldest message from it that this rank has launched.
    fn whole(&mut self, from: usize) -> Option<Vec<Action>> {
        let peer = &mut self.peers[from];
        peer.ahead = peer.ahead.checked_sub(1)?;
        Some(vec![Action::Whole(Lane::From(from))])
    }
}
