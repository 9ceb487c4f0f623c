//! What replicas have sent each other, and what is to come.
//!
//! Guarantees: a message is taken off the link only if it is known what it is for; one that comes before it is used is
//! kept; what comes in another order than both rows say is refused as on any link.
//!
//! 1. What is to come from a replica is *posted*, in the order in which its row sends it.
//! 2. Sums of gradients are sent as soon as they can be made, so they may come *early*: before their turn, even before
//!    this rank knows that it is their turn. They are announced as such when the reduction starts.
//! 3. Links that cannot tell what has come ([`Link::arrived`]) send no sums before their turn: there the posted order is
//!    the order of arrival.

use crate::link::{Activity, Header, Link, LinkError};
use crate::stage::Payload;
use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Instant;

/// Messages of the other replicas, by the rank that sends them.
#[derive(Debug, Default)]
pub(super) struct Mail {
    inbox: HashMap<(usize, Header), Payload>,
    posted: HashMap<usize, VecDeque<Header>>,
    early: HashSet<(usize, Header)>,
}

impl Mail {
    /// A message that comes after those that were posted before it.
    pub(super) fn post(&mut self, from: usize, header: Header) {
        self.early.remove(&(from, header));
        if !self.is_here(from, header) {
            self.posted.entry(from).or_default().push_back(header);
        }
    }

    /// A message that will be posted, and may come sooner.
    pub(super) fn may_come(&mut self, from: usize, header: Header) {
        self.early.insert((from, header));
    }

    /// Was a message taken off the link, and not used?
    pub(super) fn is_here(&self, from: usize, header: Header) -> bool {
        self.inbox.contains_key(&(from, header))
    }

    fn expects(&self, from: usize, header: Header) -> bool {
        let posted = self.posted.get(&from).is_some_and(|posted| posted.contains(&header));
        posted || self.early.contains(&(from, header))
    }

    fn keep(&mut self, from: usize, header: Header, payload: Payload) {
        if let Some(posted) = self.posted.get_mut(&from) {
            posted.retain(|other| *other != header);
        }
        self.early.remove(&(from, header));
        self.inbox.insert((from, header), payload);
    }

    /// Takes what has come from these ranks, without waiting. Gives those from which nothing is there now: a rank that has
    /// sent something for later is not among them.
    pub(super) fn collect(
        &mut self,
        link: &mut dyn Link,
        from: impl Iterator<Item = usize>,
        deadline: Instant,
    ) -> Result<Vec<usize>, LinkError> {
        let mut silent = Vec::new();
        for rank in from {
            loop {
                match link.arrived(&[rank], Instant::now())? {
                    Some((_, header)) if self.expects(rank, header) => {
                        let payload = link.receive(rank, header, deadline)?;
                        self.keep(rank, header, payload);
                    }
                    Some(_) => break,
                    None => {
                        silent.push(rank);
                        break;
                    }
                }
            }
        }
        Ok(silent)
    }

    /// Waits for a message.
    pub(super) fn take(
        &mut self,
        link: &mut dyn Link,
        from: usize,
        header: Header,
        deadline: Instant,
    ) -> Result<Payload, LinkError> {
        let began = Instant::now();
        loop {
            if let Some(payload) = self.inbox.remove(&(from, header)) {
                return Ok(payload);
            }
            // What was not posted is asked for now: the link says what came instead.
            let next = self.posted.get(&from).and_then(VecDeque::front).copied().unwrap_or(header);
            link.announce(Activity::Waiting(next, from));
            let arrived = link.arrived(&[from], poll_deadline(deadline))?;
            let next = arrived.map(|(_, header)| header).filter(|header| self.expects(from, *header)).unwrap_or(next);
            let payload = link.receive(from, next, deadline).map_err(|error| error.since(began))?;
            self.keep(from, next, payload);
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// When a wait begins to look as if it were in vain: the rest of it is the link's, which then asks who does what.
pub(crate) fn poll_deadline(deadline: Instant) -> Instant {
    let now = Instant::now();
    now + deadline.saturating_duration_since(now) / 16 * 15
}
