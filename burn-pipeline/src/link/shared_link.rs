//! A rank's end of a link that its stages use too, for the collectives of their tensor-parallel group. It logs all
//! traffic of the rank: a debug event for each message and each operation over a group.
//!
//! Guarantees: the messages of executor and stages have one order, since a rank does one thing at a time; the end
//! is closed when the executor drops it, even if a [`StageEnd`] is still alive. Logging changes, copies and waits for
//! nothing; without a subscriber to the target `burn_pipeline::transfer` at debug level, it costs one comparison per
//! message.
//!
//! 1. Only the executor's half keeps the end alive, and forwards every method to it but `collectives`, which would
//!    return a reference into the lock: see [`SharedLink::with_collectives`]. A rank runs its stages and its exchanges
//!    on one thread, so nobody waits for the lock.
//! 2. The end is outside of all wrappers of the link, so it sees what plans, replicas, groups, vocabularies,
//!    checkpoints and measurements send, over every transport.
//! 3. The sender logs a message when it is sent, and the receiver when it is taken off the link, which may be some
//!    time after its receive was posted. So each message has one event at either end.
//! 4. Each member logs an operation over a group with its own tensors, not message by message, since transports run
//!    these operations in their own ways. Operations that a link runs for stages ([`Collectives`]) are logged where
//!    they begin.

use super::collectives::Collectives;
use super::error::LinkError;
use super::header::{Header, Message};
use super::link_trait::Link;
use super::monitor::Activity;
use crate::payload::{Payload, PayloadSpec};
use parking_lot::Mutex;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Instant;

/// The target of the events.
pub(crate) const TRANSFER: &str = "burn_pipeline::transfer";

/// The end, and what its rank is doing.
struct EndState {
    link: Box<dyn Link>,
    activity: Activity,
}

/// The executor's half: a link that forwards to the end.
pub(crate) struct SharedLink(Arc<Mutex<EndState>>);

/// The stages' half.
#[derive(Clone)]
pub(crate) struct StageEnd(Weak<Mutex<EndState>>);

impl fmt::Debug for StageEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StageEnd")
    }
}

impl SharedLink {
    /// Shares an end.
    pub(crate) fn new(link: Box<dyn Link>) -> Self {
        Self(Arc::new(Mutex::new(EndState { link, activity: Activity::Idle })))
    }

    /// The half for the rank's stages.
    pub(crate) fn stage_end(&self) -> StageEnd {
        StageEnd(Arc::downgrade(&self.0))
    }

    /// Calls `f` with the collectives of the link; `None` if it has none. `f` must not use the link otherwise.
    pub(crate) fn with_collectives<T>(&self, f: impl FnOnce(&mut dyn Collectives) -> T) -> Option<T> {
        self.0.lock().collectives().map(f)
    }
}

impl StageEnd {
    /// Calls `f` with the end and the rank's activity. Returns `None` if the pipeline is gone.
    pub(crate) fn with<T>(&self, f: impl FnOnce(&mut dyn Link, Activity) -> T) -> Option<T> {
        let held = self.0.upgrade()?;
        let mut held = held.lock();
        let activity = held.activity;
        let result = f(&mut *held, activity);
        held.set_activity(activity);
        Some(result)
    }
}

impl Link for SharedLink {
    crate::forward_link!((0.lock()): rank, ranks, monitor, to_device, set_activity, send, receive, probe);
    crate::forward_link!((0.lock()): all_gather, barrier, abort, interrupt, recover);
}

impl EndState {
    fn tell(&self, what: &'static str, peer: usize, header: Header, payload: &Payload) {
        let Header { kind, stage, microbatch } = header;
        tracing::debug!(
            target: TRANSFER, rank = self.rank(), peer, ?kind, %stage, microbatch,
            tensors = %PayloadSpec::of_payload(payload), bytes = payload.bytes(), "{what}"
        );
    }
}

impl Link for EndState {
    crate::forward_link!(link: rank, ranks, monitor, to_device, probe, all_gather);
    crate::forward_link!(link: barrier, abort, interrupt, recover);

    fn set_activity(&mut self, activity: Activity) {
        self.activity = activity;
        self.link.set_activity(activity);
    }

    fn send(&mut self, to: usize, message: Message, deadline: Instant) -> Result<(), LinkError> {
        self.tell("sent", to, message.header, &message.payload);
        self.link.send(to, message, deadline)
    }

    fn receive(&mut self, from: usize, header: Header, deadline: Instant) -> Result<Payload, LinkError> {
        let payload = self.link.receive(from, header, deadline)?;
        self.tell("received", from, header, &payload);
        Ok(payload)
    }

    fn collectives(&mut self) -> Option<&mut dyn Collectives> {
        self.link.collectives()
    }
}
