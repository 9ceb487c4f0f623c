//! The end of the thread that serves a link.
//!
//! Guarantees: dropping a link returns within a bound, even if the thread is in a driver call that never returns.
//! Then the thread is abandoned, and an event says so.
//!
//! 1. A thread that is told to close continues until nothing is left to send, to launch or in flight and all other
//!    ranks know that it leaves, or until a deadline ([`closing`]).
//! 2. If something is left at the deadline, it gives up: the communicators are aborted, which empties the queue.
//! 3. The rank waits for the thread's end ([`Ending::wait`]) a little longer than that takes.

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// The next step of a thread that may have been told to close.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Continue to serve.
    Serve,
    /// Close: nothing is left to do.
    Close,
    /// Give up: the deadline has passed, and the queue must be emptied by force.
    GiveUp,
}

/// Returns the next step of a thread that must close by `deadline`, if it was told to.
pub(crate) fn closing(deadline: Option<Instant>, idle: bool, now: Instant) -> Next {
    match deadline {
        Some(_) if idle => Next::Close,
        Some(deadline) if now >= deadline => Next::GiveUp,
        _ => Next::Serve,
    }
}

/// A thread whose end can be awaited with a timeout.
#[derive(Debug)]
pub(crate) struct Ending {
    thread: JoinHandle<()>,
    /// Disconnected when the thread's body has ended, even by a panic.
    ended: Receiver<()>,
}

impl Ending {
    /// Starts a thread.
    pub(crate) fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> std::io::Result<Self> {
        let (alive, ended) = channel::<()>();
        let thread = Builder::new().name(name.to_owned()).spawn(move || {
            let _alive = alive;
            body();
        })?;
        Ok(Self { thread, ended })
    }

    /// Waits for the end of the thread. Returns false if it has not ended in time; the thread then lives on by
    /// itself.
    pub(crate) fn wait(self, timeout: Duration) -> bool {
        match self.ended.recv_timeout(timeout) {
            Err(RecvTimeoutError::Timeout) => {
                let (thread, seconds) = (self.thread.thread().name().map(str::to_owned), timeout.as_secs_f64());
                tracing::error!(thread, seconds, "it does not end, and is left: a call of the driver does not return");
                false
            }
            Ok(()) | Err(RecvTimeoutError::Disconnected) => {
                // The thread's panic hook has printed its panic.
                let _ = self.thread.join();
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_never_ends_is_left_after_the_timeout_and_others_are_joined() {
        let (release, stuck) = channel::<()>();
        let ending = Ending::spawn("stuck", move || {
            let _ = stuck.recv();
        })
        .unwrap();
        let began = Instant::now();
        assert!(!ending.wait(Duration::from_millis(50)));
        let took = began.elapsed();
        assert!(took >= Duration::from_millis(50) && took < Duration::from_secs(10), "{took:?}");
        drop(release);
        assert!(Ending::spawn("quick", || ()).unwrap().wait(Duration::from_secs(60)));
        let panics = Ending::spawn("panics", || std::panic::resume_unwind(Box::new("its own")));
        assert!(panics.unwrap().wait(Duration::from_secs(60)));
    }

    #[test]
    fn a_deadline_that_passes_with_transfers_in_flight_is_no_ordinary_end() {
        let now = Instant::now();
        let (past, future) = (now - Duration::from_millis(1), now + Duration::from_secs(1));
        assert_eq!(closing(None, true, now), Next::Serve);
        assert_eq!(closing(Some(future), false, now), Next::Serve);
        assert_eq!(closing(Some(future), true, now), Next::Close);
        assert_eq!(closing(Some(past), true, now), Next::Close);
        assert_eq!(closing(Some(past), false, now), Next::GiveUp);
    }
}
