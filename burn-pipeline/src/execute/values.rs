//! The values that wait on a rank during a run: received and not used yet, announced by a receive, or to be sent.

use super::transfer::Transfer;
use crate::link::{Header, Link, LinkError};
use crate::stage::Payload;
use std::collections::{HashMap, VecDeque};
use std::time::Instant;

/// Inbox, outbox and posted receives of one rank during one run.
#[derive(Debug, Default)]
pub(super) struct Values {
    inbox: HashMap<Header, Payload>,
    outbox: HashMap<Header, Payload>,
    posted: HashMap<usize, VecDeque<Header>>,
    /// Are all messages posted from the start?
    announced: bool,
}

impl Values {
    /// Stores a stage's product: in the inbox if the stage that uses it is on this pipeline rank, else in the outbox.
    pub(super) fn store(&mut self, transfer: Transfer, pipeline_rank: usize, payload: Payload) {
        let table = if transfer.peer == pipeline_rank { &mut self.inbox } else { &mut self.outbox };
        table.insert(transfer.header, payload);
    }

    /// Keeps what this rank itself gives to a collective.
    pub(super) fn keep(&mut self, header: Header, payload: Payload) {
        self.inbox.insert(header, payload);
    }

    /// Takes out a value that is to be sent.
    pub(super) fn take_outgoing(&mut self, header: Header) -> Option<Payload> {
        self.outbox.remove(&header)
    }

    /// Posts all messages that a rank will send here, in its order; [`Values::post`] then adds nothing.
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

    /// Receives messages into the inbox until the one with this header is there. Returns false if it was neither stored
    /// nor posted.
    pub(super) fn receive(
        &mut self,
        link: &mut dyn Link,
        header: Header,
        from: usize,
        deadline: Instant,
    ) -> Result<bool, LinkError> {
        // In posted order, not only the wanted message: `check` proved that the sender sends in this order, so a link
        // that delivers in order never has to search, and the messages before the wanted one are needed later anyway.
        while !self.inbox.contains_key(&header) {
            let Some(next) = self.posted.get_mut(&from).and_then(VecDeque::pop_front) else { return Ok(false) };
            let payload = link.receive(from, next, deadline)?;
            self.inbox.insert(next, payload);
        }
        Ok(true)
    }

    /// Is a value in the inbox?
    pub(super) fn has(&self, header: Header) -> bool {
        self.inbox.contains_key(&header)
    }

    /// Takes a value out of the inbox.
    pub(super) fn take(&mut self, header: Header) -> Option<Payload> {
        self.inbox.remove(&header)
    }
}
