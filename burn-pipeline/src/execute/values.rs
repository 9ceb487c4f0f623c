//! The values that wait on a rank during a run: received but not yet used, announced by a receive, or to be sent.
//!
//! A value between groups of different sizes travels in several messages with one header. So received values are
//! also identified by their sender, and a value to be sent is a list with one message per receiving rank.

use crate::link::{Header, Link, LinkError};
use crate::payload::Payload;
use std::collections::{HashMap, VecDeque};
use std::time::Instant;

/// Inbox, outbox and posted receives of one rank during one run.
#[derive(Debug, Default)]
pub(super) struct Values {
    /// By the rank that sent it.
    inbox: HashMap<(usize, Header), Payload>,
    outbox: HashMap<Header, Vec<Payload>>,
    posted: HashMap<usize, VecDeque<Header>>,
    /// True if all messages are posted from the start.
    announced: bool,
}

impl Values {
    /// Stores a value that this rank, `own`, both makes and uses: for another of its stages, or in a collective.
    pub(super) fn keep(&mut self, own: usize, header: Header, payload: Payload) {
        self.inbox.insert((own, header), payload);
    }

    /// Stores a value to be sent: one message for each receiving rank.
    pub(super) fn give(&mut self, header: Header, messages: Vec<Payload>) {
        self.outbox.insert(header, messages);
    }

    /// Takes out a value to be sent.
    pub(super) fn take_outgoing(&mut self, header: Header) -> Option<Vec<Payload>> {
        self.outbox.remove(&header)
    }

    /// Posts all messages that a rank will send to this one, in its order; [`Values::post`] then does nothing.
    pub(super) fn announce(&mut self, from: usize, headers: VecDeque<Header>) {
        self.posted.insert(from, headers);
        self.announced = true;
    }

    /// Posts the receive of a message from a rank, after those already posted.
    pub(super) fn post(&mut self, from: usize, header: Header) {
        if !self.announced {
            self.posted.entry(from).or_default().push_back(header);
        }
    }

    /// Receives messages into the inbox until the one with this header has arrived. Returns false if it was neither
    /// stored nor posted.
    pub(super) fn receive(
        &mut self,
        link: &mut dyn Link,
        header: Header,
        from: usize,
        deadline: Instant,
    ) -> Result<bool, LinkError> {
        // Receive in posted order, not only the wanted message: `check` proved that the sender sends in this order,
        // so a link that delivers in order never has to search, and earlier messages are needed later anyway.
        while !self.has(from, header) {
            let Some(next) = self.posted.get_mut(&from).and_then(VecDeque::pop_front) else { return Ok(false) };
            let payload = link.receive(from, next, deadline)?;
            self.inbox.insert((from, next), payload);
        }
        Ok(true)
    }

    /// Returns true if the message from a rank is in the inbox.
    pub(super) fn has(&self, from: usize, header: Header) -> bool {
        self.inbox.contains_key(&(from, header))
    }

    /// Takes a message from a rank out of the inbox.
    pub(super) fn take(&mut self, from: usize, header: Header) -> Option<Payload> {
        self.inbox.remove(&(from, header))
    }
}
