//! A rank's end of a link that its stages use too, for the collectives of their tensor-parallel group.
//!
//! Guarantees: the messages of executor and stages have one order, since a rank does one thing at a time; the end
//! is closed when the executor drops it, even if a [`StageEnd`] is still alive.
//!
//! Only the executor's half keeps the end alive, and forwards every method to it. A rank runs its stages and its
//! exchanges on one thread, so nobody waits for the lock.

use super::collectives::{Collectives, FlatCollective};
use super::error::LinkError;
use super::link_trait::Link;
use super::monitor::Activity;
use crate::payload::AnyTensor;
use parking_lot::Mutex;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Instant;

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
}

impl StageEnd {
    /// Calls `f` with the end and the rank's activity. Returns `None` if the pipeline is gone.
    pub(crate) fn with<T>(&self, f: impl FnOnce(&mut dyn Link, Activity) -> T) -> Option<T> {
        let held = self.0.upgrade()?;
        let mut held = held.lock();
        let activity = held.activity;
        let result = f(held.link.as_mut(), activity);
        held.link.set_activity(activity);
        Some(result)
    }
}

impl Link for SharedLink {
    crate::forward_link!((0.lock().link): rank, ranks, overlaps, monitor, to_device, send, receive, probe);
    crate::forward_link!((0.lock().link): all_gather, barrier, abort, interrupt, recover);

    fn set_activity(&mut self, activity: Activity) {
        let mut held = self.0.lock();
        held.activity = activity;
        held.link.set_activity(activity);
    }

    fn collectives(&mut self) -> Option<&mut dyn Collectives> {
        if self.0.lock().link.collectives().is_some() { Some(self) } else { None }
    }
}

impl SharedLink {
    fn with_collectives<T>(
        &mut self,
        f: impl FnOnce(&mut dyn Collectives) -> Result<T, LinkError>,
    ) -> Result<T, LinkError> {
        let mut end = self.0.lock();
        let rank = end.link.rank();
        let message = || "the link has no collectives".to_owned();
        f(end.link.collectives().ok_or_else(|| LinkError::Closed { rank, message: message() })?)
    }
}

impl Collectives for SharedLink {
    fn form(&mut self, group: &[usize], deadline: Instant) -> Result<(), LinkError> {
        self.with_collectives(|collectives| collectives.form(group, deadline))
    }

    fn begin(&mut self, collective: FlatCollective, what: String, tensor: AnyTensor) -> Result<(), LinkError> {
        self.with_collectives(|collectives| collectives.begin(collective, what, tensor))
    }

    fn end(&mut self, deadline: Instant) -> Result<AnyTensor, LinkError> {
        self.with_collectives(|collectives| collectives.end(deadline))
    }

    fn meet(&mut self, what: String, deadline: Instant) -> Result<(), LinkError> {
        self.with_collectives(|collectives| collectives.meet(what, deadline))
    }

    fn form_sets(&mut self, sets: &[Vec<usize>], deadline: Instant) -> Result<(), LinkError> {
        self.with_collectives(|collectives| collectives.form_sets(sets, deadline))
    }

    fn sum(
        &mut self,
        set: usize,
        ranks: &[usize],
        tensors: Vec<Option<AnyTensor>>,
        deadline: Instant,
    ) -> Result<Vec<Option<AnyTensor>>, LinkError> {
        self.with_collectives(|collectives| collectives.sum(set, ranks, tensors, deadline))
    }
}
