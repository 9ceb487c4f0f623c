//! Extends waits for a rank that is alive and busy with slow work.
//!
//! Guarantees: a wait still ends. While some rank builds, reads or writes (user code, a disk, a network), a wait is
//! extended by its own length, at most [`TIMES`] times.

use super::activity::Activity;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// How often a wait is extended at most.
pub(crate) const TIMES: u32 = 60;

/// A deadline that moves.
#[derive(Debug)]
pub(super) struct MovingDeadline {
    pub(super) deadline: Instant,
    period: Duration,
    left: u32,
}

impl MovingDeadline {
    /// The deadline of a wait that begins now.
    pub(super) fn new(deadline: Instant) -> Self {
        Self { deadline, period: deadline.saturating_duration_since(Instant::now()), left: TIMES }
    }

    /// Moves a deadline that has passed, if it may be moved. A wait of length zero is not extended.
    pub(super) fn prolong(&mut self) -> bool {
        if self.left == 0 || self.period.is_zero() {
            return false;
        }
        self.left -= 1;
        self.deadline = Instant::now() + self.period;
        true
    }
}

/// How long an activity may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Pace {
    /// Less than a timeout.
    Prompt,
    /// The rank waits for its program's next call, which may take a while: the program may load data.
    Idle,
    /// User code, disks and networks: longer than a timeout.
    Long,
}

impl Activity {
    /// How long it may take.
    pub(crate) fn pace(self) -> Pace {
        match self {
            Activity::Building(_) | Activity::Saving | Activity::Loading => Pace::Long,
            Activity::Idle => Pace::Idle,
            _ => Pace::Prompt,
        }
    }

    /// Returns true if a rank with activity `self` extends its waits because of another rank's pace.
    pub(super) fn waits_on_for(self, other: Pace) -> bool {
        other == Pace::Long || other == Pace::Idle && self == Activity::Calling
    }
}
