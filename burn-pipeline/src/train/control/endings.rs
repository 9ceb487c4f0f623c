//! Waits for the threads of ranks to end, so that links are closed in order before their process ends.
//!
//! Guarantees: dropping a pipeline that is one rank of several processes waits until its thread has closed its link, or
//! until [`TIMEOUT`] has passed, so a rank stuck in user code does not keep its process alive.
//!
//! Each thread holds one end of a channel through which nothing is sent; the channel is disconnected when the thread
//! ends.

use std::convert::Infallible;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// The maximum wait for all threads together.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Waits for threads when it is dropped.
#[derive(Debug, Default)]
pub(super) struct Endings(Vec<Receiver<Infallible>>);

impl Endings {
    /// Returns a value that a thread must keep until it ends.
    pub(super) fn add(&mut self) -> Sender<Infallible> {
        let (alive, ended) = channel();
        self.0.push(ended);
        alive
    }
}

impl Drop for Endings {
    fn drop(&mut self) {
        let since = Instant::now();
        for ended in &self.0 {
            // Returns when the thread has ended, or at the deadline.
            let _ = ended.recv_timeout(TIMEOUT.saturating_sub(since.elapsed()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drop_waits_until_threads_have_ended() {
        let mut endings = Endings::default();
        let began = Instant::now();
        for _ in 0..2 {
            let alive = endings.add();
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(200));
                drop(alive);
            });
        }
        drop(endings);
        assert!(began.elapsed() >= Duration::from_millis(200) && began.elapsed() < TIMEOUT, "{:?}", began.elapsed());
    }
}
