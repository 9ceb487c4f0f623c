//! Tests that fail instead of hanging.

use std::panic::resume_unwind;
use std::sync::Once;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// Runs a test's body on another thread. Fails if it takes longer than `seconds`.
pub(crate) fn within<T: Send + 'static>(seconds: u64, what: &str, body: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = channel();
    // A send fails only after the test has given up.
    let thread = std::thread::spawn(move || drop(done.send(body())));
    match result.recv_timeout(Duration::from_secs(seconds)) {
        Ok(value) => value,
        Err(RecvTimeoutError::Timeout) => panic!("{what} took longer than {seconds} s"),
        Err(RecvTimeoutError::Disconnected) => match thread.join() {
            Err(panic) => resume_unwind(panic),
            Ok(()) => unreachable!("the body ended without a value"),
        },
    }
}

/// Keeps panic messages that tests provoke on ranks' threads off the terminal.
pub(crate) fn quiet_ranks() {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !std::thread::current().name().is_some_and(|name| name.starts_with("rank ")) {
                usual(info);
            }
        }));
    });
}
