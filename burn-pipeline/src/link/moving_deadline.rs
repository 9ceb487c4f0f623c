//! Extends waits for a rank that is alive and busy with slow work.
//!
//! Guarantees: a wait still ends. While some rank builds, reads or writes (user code, a disk, a network), a wait is
//! extended by its own length, at most [`TIMES`] times. Ranks that all wait for a lost one do not extend each other's
//! waits: one of them gives up within two timeouts after the last of them has begun to wait.
//!
//! 1. A rank whose activity is slow may itself wait for others meanwhile. During the time of that wait it counts as
//!    slow: its message may be under way, and it works on afterwards. Once the time is used up, it does not.
//! 2. A wait that goes on where a probe has found nothing is as long as both together.

use super::monitor::Activity;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// How often a wait is extended at most.
pub(crate) const TIMES: u32 = 60;

/// The longest timeout, ten years: deadlines at this distance, and extended ones, can be computed. Transports limit
/// their timeouts to it.
pub const LONGEST_TIMEOUT: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// What a rank is doing, as ranks that wait for it see it.
#[derive(Debug, Default)]
pub(super) struct Doing(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    activity: Activity,
    /// The deadline of the wait that the rank is in, before it was moved.
    waits_until: Option<Instant>,
    /// When the last probes began, if they have found nothing and the rank has done nothing else since.
    probes_since: Option<Instant>,
}

impl Doing {
    pub(super) fn activity(&self) -> Activity {
        self.0.lock().activity
    }

    pub(super) fn set(&self, activity: Activity) {
        let mut state = self.0.lock();
        (state.activity, state.probes_since) = (activity, None);
    }

    /// How long the rank may take for what it is doing.
    pub(super) fn pace(&self) -> Pace {
        let state = self.0.lock();
        let is_late = state.waits_until.is_some_and(|until| Instant::now() >= until);
        if is_late { Pace::Prompt } else { state.activity.pace() }
    }

    /// Begins a wait, which ends when the result is dropped.
    pub(super) fn wait(&self, deadline: Instant) -> MovingDeadline<'_> {
        let (mut state, now) = (self.0.lock(), Instant::now());
        let period = deadline.saturating_duration_since(state.probes_since.take().unwrap_or(now));
        let left = if deadline > now { TIMES } else { 0 };
        state.waits_until = Some(deadline);
        MovingDeadline { deadline, period, left, doing: self }
    }

    /// A probe that began then, and waited, has found nothing. The first of several in a row counts.
    pub(super) fn found_nothing(&self, since: Instant) {
        self.0.lock().probes_since.get_or_insert(since);
    }
}

/// The deadline of a wait. It moves.
#[derive(Debug)]
pub(super) struct MovingDeadline<'a> {
    pub(super) deadline: Instant,
    /// How far it moves.
    pub(super) period: Duration,
    left: u32,
    doing: &'a Doing,
}

impl MovingDeadline<'_> {
    /// Moves a deadline that has passed, if it may be moved. A wait of length zero is not extended.
    pub(super) fn prolong(&mut self) -> bool {
        if self.left == 0 {
            return false;
        }
        self.left -= 1;
        self.deadline = Instant::now() + self.period;
        true
    }
}

impl Drop for MovingDeadline<'_> {
    fn drop(&mut self) {
        self.doing.0.lock().waits_until = None;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_is_slow_until_the_time_of_its_own_wait_is_used_up_and_again_afterwards() {
        let doing = Doing::default();
        doing.set(Activity::Saving);
        assert_eq!(doing.pace(), Pace::Long);
        let wait = doing.wait(Instant::now() + Duration::from_secs(600));
        assert_eq!(doing.pace(), Pace::Long, "what it waits for may be under way");
        drop(wait);
        let mut wait = doing.wait(Instant::now() + Duration::from_millis(1));
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(doing.pace(), Pace::Prompt);
        assert!(wait.prolong());
        assert_eq!(doing.pace(), Pace::Prompt, "others give up, although it waits on");
        drop(wait);
        assert_eq!(doing.pace(), Pace::Long);
        assert!(!doing.wait(Instant::now()).prolong(), "this only looks");
    }

    #[test]
    fn a_wait_after_a_probe_that_found_nothing_is_as_long_as_both() {
        let (doing, minute) = (Doing::default(), Duration::from_secs(60));
        let deadline = Instant::now() + minute;
        let earlier = deadline - 16 * minute;
        doing.found_nothing(earlier);
        assert_eq!(doing.wait(deadline).period, 16 * minute);
        assert!(doing.wait(deadline).period <= minute, "another wait");
        doing.found_nothing(earlier);
        doing.set(Activity::Saving);
        assert!(doing.wait(deadline).period <= minute, "it has done something else since");
    }
}
