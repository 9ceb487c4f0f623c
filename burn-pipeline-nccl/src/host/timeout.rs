//! How long the link itself waits: as long as the rank that it serves.
//!
//! Guarantees: a transfer may stay in the queue, and the link's end may take, as long as the longest wait that the rank
//! has asked for, which is the pipeline's timeout (`Builder::timeout`). Before the first call it is the time that ranks
//! had to connect.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A timeout that calls' deadlines tell, shared by the rank's thread and the link's.
#[derive(Debug, Clone)]
pub(crate) struct Timeout {
    start: Duration,
    /// Nanoseconds; 0 before the first call.
    told: Arc<AtomicU64>,
}

impl Timeout {
    /// A link whose ranks had so long to connect.
    pub(crate) fn new(start: Duration) -> Self {
        Self { start, told: Arc::default() }
    }

    /// A call of the rank that must end by this deadline.
    pub(crate) fn hear(&self, deadline: Instant) {
        let left = deadline.saturating_duration_since(Instant::now());
        self.told.fetch_max(left.as_nanos().try_into().unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// How long a wait may take.
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
        // A call that comes late in a series has less time left, and says nothing of the timeout.
        for seconds in [3, 10, 1] {
            heard.hear(Instant::now() + Duration::from_secs(seconds));
        }
        let ten = timeout.get();
        assert!(ten <= Duration::from_secs(10) && ten > Duration::from_secs(9), "{ten:?}");
        heard.hear(Instant::now() + 3 * minute);
        assert!(timeout.get() > 2 * minute);
    }
}
