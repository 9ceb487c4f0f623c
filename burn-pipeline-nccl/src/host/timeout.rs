//! The link's own timeout: as long as the rank's.
//!
//! Guarantees: a transfer may stay in the queue, and the link's end may take, as long as the rank's longest wait,
//! which is the pipeline's timeout (`Builder::timeout`). Before the first call it is the time that ranks had to
//! connect.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A timeout learned from the deadlines of calls, shared by the rank's thread and the link's.
#[derive(Debug, Clone)]
pub(crate) struct Timeout {
    start: Duration,
    /// Nanoseconds; 0 before the first call.
    told: Arc<AtomicU64>,
}

impl Timeout {
    /// The timeout of a link whose ranks had the time `start` to connect.
    pub(crate) fn new(start: Duration) -> Self {
        Self { start, told: Arc::default() }
    }

    /// Learns from a call of the rank that must end by this deadline.
    pub(crate) fn hear(&self, deadline: Instant) {
        let left = deadline.saturating_duration_since(Instant::now());
        self.told.fetch_max(left.as_nanos().try_into().unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// The longest time of a wait.
    pub(crate) fn get(&self) -> Duration {
        match self.told.load(Ordering::Relaxed) {
            0 => self.start,
            told => Duration::from_nanos(told),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_wait_that_was_asked_for_counts_and_before_it_the_time_to_connect() {
        let minute = Duration::from_secs(60);
        let timeout = Timeout::new(minute);
        let heard = timeout.clone();
        assert_eq!(timeout.get(), minute);
        // A late call in a series has less time left, and does not lower the timeout.
        for seconds in [3, 10, 1] {
            heard.hear(Instant::now() + Duration::from_secs(seconds));
        }
        let ten = timeout.get();
        assert!(ten <= Duration::from_secs(10) && ten > Duration::from_secs(9), "{ten:?}");
        heard.hear(Instant::now() + 3 * minute);
        assert!(timeout.get() > 2 * minute);
    }
}
