//! A link that logs all traffic of every rank: a debug event for each message and each operation over a group.
//!
//! Guarantees: nothing is changed, copied or waited for. Without a subscriber to the target
//! `burn_pipeline::transfer` at debug level, it costs one comparison per message.
//!
//! 1. It wraps every rank's link, outside of all other wrappers, so it sees what plans, replicas, groups,
//!    vocabularies, checkpoints and measurements send, over every transport.
//! 2. The sender logs a message when it is sent, and the receiver when it is taken off the link, which may be some
//!    time after its receive was posted. So each message has one event at either end.
//! 3. Each member logs an operation over a group with its own tensors, not message by message, since transports run
//!    these operations in their own ways. Operations that a link runs for stages ([`Collectives`]) are logged where
//!    they begin.

use super::collectives::Collectives;
use super::error::LinkError;
use super::header::{Header, Message};
use super::link_trait::Link;
use crate::payload::{Payload, PayloadSpec};
use std::time::Instant;

/// The target of the events.
pub(crate) const TRANSFER: &str = "burn_pipeline::transfer";

/// A rank's end of a link that logs what it sends and receives.
pub(crate) struct Logged(Box<dyn Link>);

impl Logged {
    /// Logs the traffic of this end.
    pub(crate) fn new(link: Box<dyn Link>) -> Self {
        Self(link)
    }

    fn tell(&self, what: &'static str, peer: usize, header: Header, payload: &Payload) {
        let Header { kind, stage, microbatch } = header;
        tracing::debug!(
            target: TRANSFER, rank = self.0.rank(), peer, ?kind, %stage, microbatch,
            tensors = %PayloadSpec::of_payload(payload), bytes = payload.bytes(), "{what}"
        );
    }
}

impl Link for Logged {
    crate::forward_link!(0: rank, ranks, overlaps, monitor, to_device, set_activity, probe, all_gather);
    crate::forward_link!(0: barrier, abort, interrupt, recover);

    fn send(&mut self, to: usize, message: Message, deadline: Instant) -> Result<(), LinkError> {
        self.tell("sent", to, message.header, &message.payload);
        self.0.send(to, message, deadline)
    }

    fn receive(&mut self, from: usize, header: Header, deadline: Instant) -> Result<Payload, LinkError> {
        let payload = self.0.receive(from, header, deadline)?;
        self.tell("received", from, header, &payload);
        Ok(payload)
    }

    fn collectives(&mut self) -> Option<&mut dyn Collectives> {
        self.0.collectives()
    }
}
