//! The values that wait on a rank: what has come and was not used, what is to come, what is to go.

use super::skips;
use crate::link::{Header, Link, LinkError};
use crate::plan::{MicrobatchTask, Op, Placement};
use crate::stage::Payload;
use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use crate::link::Direction;

/// Inbox, outbox and announced receives of one rank during one run.
#[derive(Debug, Default)]
pub(super) struct Values {
    inbox: HashMap<Header, Payload>,
    outbox: HashMap<Header, Payload>,
    posted: HashMap<usize, VecDeque<Header>>,
}

/// The header of what a compute task takes from its neighbour.
pub(super) fn wanted(task: MicrobatchTask) -> Header {
    let direction = if task.op() == Op::Forward { Direction::Forward } else { Direction::Backward };
    Header { stage: task.stage(), microbatch: task.microbatch(), direction }
}

/// The header under which a task's product, or a send's message, reaches the neighbour; `None` at the route's end.
pub(super) fn produced(placement: &Placement, task: MicrobatchTask) -> Option<Header> {
    let forward = matches!(task.op(), Op::Forward | Op::SendForward);
    let (stage, direction) = match forward {
        true => (placement.next(task.stage())?, Direction::Forward),
        false => (task.stage().previous()?, Direction::Backward),
    };
    Some(Header { stage, microbatch: task.microbatch(), direction })
}

/// The rank of the stage before (`forward`) or after.
pub(super) fn neighbour(placement: &Placement, task: MicrobatchTask, forward: bool) -> Option<usize> {
    let stage = if task.is_skip() {
        task.skip_peer()
    } else if forward {
        task.stage().previous()
    } else {
        placement.next(task.stage())
    };
    stage.map(|stage| placement.rank_of(stage))
}

/// The header of the message that a receive is for.
pub(super) fn received(task: MicrobatchTask) -> Option<Header> {
    if task.is_skip() {
        return skips::header(task);
    }
    let op = match task.op() {
        Op::ReceiveForward => Op::Forward,
        Op::ReceiveBackward => Op::Backward,
        _ => return None,
    };
    Some(wanted(task.with(task.stage(), op)))
}

impl Values {
    /// Keeps a product for the stage that it is for: here, or to be sent.
    pub(super) fn keep(&mut self, placement: &Placement, rank: usize, header: Header, payload: Payload) {
        let here = placement.rank_of(header.stage) == rank;
        let place = if here { &mut self.inbox } else { &mut self.outbox };
        place.insert(header, payload);
    }

    /// Takes out what is to be sent.
    pub(super) fn take_outgoing(&mut self, header: Header) -> Option<Payload> {
        self.outbox.remove(&header)
    }

    /// Notes that a message is to come from a rank, after those already noted.
    pub(super) fn post(&mut self, from: usize, header: Header) {
        self.posted.entry(from).or_default().push_back(header);
    }

    /// Takes messages off the link into the inbox until the one with this header is there.
    /// False if it was neither kept nor posted.
    pub(super) fn arrive(
        &mut self,
        link: &mut dyn Link,
        header: Header,
        from: usize,
        deadline: Instant,
    ) -> Result<bool, LinkError> {
        while !self.inbox.contains_key(&header) {
            let Some(next) = self.posted.get_mut(&from).and_then(VecDeque::pop_front) else { return Ok(false) };
            let payload = link.receive(from, next, deadline)?;
            self.inbox.insert(next, payload);
        }
        Ok(true)
    }

    /// Is a value here?
    pub(super) fn has(&self, header: Header) -> bool {
        self.inbox.contains_key(&header)
    }

    /// Takes a value out of the inbox.
    pub(super) fn take(&mut self, header: Header) -> Option<Payload> {
        self.inbox.remove(&header)
    }
}
