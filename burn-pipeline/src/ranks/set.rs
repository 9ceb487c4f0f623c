//! A set of ranks, as one of its members sees it.
//!
//! Guarantees: all exchanges of one rank's sets have one order, the order in which the rank makes them, since they use
//! its one end of the link and a rank does one thing at a time.

use super::inbox::Inbox;
use crate::link::{Activity, Header, Link, LinkError, Message, StageEnd};
use crate::payload::Payload;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The ranks of a set, and one member's end of the link. Clones are the same set.
#[derive(Clone, Debug)]
pub(crate) struct RankSet {
    /// The members' ranks in the job, in the order of their places.
    ranks: Arc<[usize]>,
    place: usize,
    /// `None` if this rank exchanges nothing: it is alone, or the others do not exist.
    end: Option<StageEnd>,
    timeout: Duration,
    /// Where messages wait if others come between them; `None` if messages arrive in the order of their use.
    inbox: Option<Arc<Mutex<Inbox>>>,
}

impl RankSet {
    /// The set of one rank.
    pub(crate) fn alone() -> Self {
        Self::without_others(1)
    }

    /// The first rank's view of a set of `size` ranks whose others do not exist.
    pub(crate) fn without_others(size: usize) -> Self {
        Self { ranks: (0..size).collect(), place: 0, end: None, timeout: Duration::ZERO, inbox: None }
    }

    /// The set of these ranks, of which this rank has the index `place`.
    pub(crate) fn new(place: usize, ranks: impl IntoIterator<Item = usize>, end: StageEnd, timeout: Duration) -> Self {
        Self { ranks: ranks.into_iter().collect(), place, end: Some(end), timeout, inbox: None }
    }

    /// The same set, whose messages may arrive in another order than the order of their use.
    pub(crate) fn with_inbox(self) -> Self {
        Self { inbox: Some(Arc::default()), ..self }
    }

    /// The number of ranks.
    pub(crate) fn size(&self) -> usize {
        self.ranks.len()
    }

    /// This rank's index in the set.
    pub(crate) fn place(&self) -> usize {
        self.place
    }

    /// This rank's number in the job.
    pub(crate) fn rank(&self) -> usize {
        self.ranks[self.place]
    }

    /// The members' ranks in the job, in the order of their places.
    pub(crate) fn ranks(&self) -> &[usize] {
        &self.ranks
    }

    /// The other members' ranks, with their places.
    pub(crate) fn others(&self) -> impl Iterator<Item = (usize, usize)> {
        self.ranks.iter().copied().enumerate().filter(|(place, _)| *place != self.place)
    }

    /// Returns true if messages may arrive in another order than the order of their use.
    pub(crate) fn has_inbox(&self) -> bool {
        self.inbox.is_some()
    }

    /// Calls `f` with the set's inbox; with a new one if it has none.
    pub(crate) fn with_messages<T>(&self, f: impl FnOnce(&mut Inbox) -> T) -> T {
        match &self.inbox {
            Some(inbox) => f(&mut inbox.lock()),
            None => f(&mut Inbox::default()),
        }
    }

    /// The deadline of a wait that starts now.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.timeout
    }

    /// Calls `f` with this rank's end of the link and its activity.
    pub(crate) fn over_link<T>(
        &self,
        f: impl FnOnce(&mut dyn Link, Activity) -> Result<T, LinkError>,
    ) -> Result<T, LinkError> {
        let closed = || {
            let message = "the pipeline was dropped, and this rank's end of the link with it".to_owned();
            Err(LinkError::Closed { rank: self.rank(), message })
        };
        self.end.as_ref().and_then(|end| end.with(f)).unwrap_or_else(closed)
    }

    /// Sends a message to the member at a place, without waiting.
    pub(crate) fn send(&self, place: usize, header: Header, payload: Payload) -> Result<(), LinkError> {
        self.over_link(|link, _| link.send(self.ranks[place], Message { header, payload }, self.deadline()))
    }

    /// Waits for a message of the member at a place.
    pub(crate) fn receive(&self, place: usize, header: Header) -> Result<Payload, LinkError> {
        self.over_link(|link, _| self.take(link, self.ranks[place], header, self.deadline()))
    }

    /// Waits for a message of the member with this rank in the job.
    pub(crate) fn take(
        &self,
        link: &mut dyn Link,
        peer: usize,
        header: Header,
        deadline: Instant,
    ) -> Result<Payload, LinkError> {
        match &self.inbox {
            Some(inbox) => inbox.lock().take(link, peer, header, deadline),
            None => link.receive(peer, header, deadline),
        }
    }
}
