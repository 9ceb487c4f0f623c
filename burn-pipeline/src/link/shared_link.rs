//! A rank's end of a link that its stages use too, for the collectives of their tensor-parallel group.
//!
//! Guarantees: the messages of executor and stages have one order, since a rank does one thing at a time; the end
//! is closed when the executor drops it, even if a [`StageEnd`] is still alive.
//!
//! Only the executor's half keeps the end alive, and forwards every method to it but `collectives`, which would
//! return a reference into the lock: see [`SharedLink::with_collectives`]. A rank runs its stages and its exchanges on
//! one thread, so nobody waits for the lock.

use super::collectives::Collectives;
use super::link_trait::Link;
use super::monitor::Activity;
use parking_lot::Mutex;
use std::fmt;
use std::sync::{Arc, Weak};

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
        self.0.lock().link.collectives().map(f)
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
}
