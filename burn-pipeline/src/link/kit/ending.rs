//! Waiting for the end of a transport's thread.
//!
//! Guarantees: the wait ends at its timeout, even if the thread is in a call of a driver or library that never returns.

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The pause between two checks whether the thread has ended.
const PAUSE: Duration = Duration::from_millis(1);

/// Waits until a thread has ended, also by a panic. Returns false if it has not ended in time.
pub fn ended_within(thread: &JoinHandle<()>, timeout: Duration) -> bool {
    let since = Instant::now();
    while !thread.is_finished() {
        if since.elapsed() >= timeout {
            return false;
        }
        std::thread::sleep(PAUSE);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::thread::spawn;

    #[test]
    fn a_thread_that_never_ends_is_left_after_the_timeout_and_the_end_of_others_is_seen() {
        let (release, stuck) = channel::<()>();
        let thread = spawn(move || {
            let _ = stuck.recv();
        });
        let began = Instant::now();
        assert!(!ended_within(&thread, Duration::from_millis(50)));
        let took = began.elapsed();
        assert!(took >= Duration::from_millis(50) && took < Duration::from_secs(10), "{took:?}");
        drop(release);
        assert!(ended_within(&thread, Duration::from_secs(60)));
        let panics = spawn(|| std::panic::resume_unwind(Box::new("its own")));
        assert!(ended_within(&panics, Duration::from_secs(60)));
    }
}
