//! A rank's link says goodbye before its process ends.
//!
//! Guarantees: when a pipeline that is one rank of several processes is dropped, its thread has let go of its link, or
//! has had [`PATIENCE`] to do so: a rank that stands in a user's code for ever does not keep its process.
//!
//! A thread holds one end of a channel, through which nothing is ever sent: it is closed when the thread has ended.

use std::convert::Infallible;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// How long threads may take to end.
const PATIENCE: Duration = Duration::from_secs(10);

/// Waits for threads when it is dropped.
#[derive(Debug, Default)]
pub(crate) struct Endings(Vec<Receiver<Infallible>>);

impl Endings {
    /// What a thread keeps until it ends.
    pub(crate) fn another(&mut self) -> Sender<Infallible> {
        let (alive, ended) = channel();
        self.0.push(ended);
        alive
    }
}

impl Drop for Endings {
    fn drop(&mut self) {
        let since = Instant::now();
        for ended in &self.0 {
            // Nothing is ever sent: it ends when the thread has, or the time.
            let _ = ended.recv_timeout(PATIENCE.saturating_sub(since.elapsed()));
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
            let alive = endings.another();
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(200));
                drop(alive);
            });
        }
        drop(endings);
        assert!(began.elapsed() >= Duration::from_millis(200) && began.elapsed() < PATIENCE, "{:?}", began.elapsed());
    }
}
