//! Panics of code that is not ours: their text, and how to run what may refuse by panicking, without printing it.
//!
//! Burn's capture device can refuse only this way: reading a value, or a tensor of another device, panics. `tracing`
//! and `Pipeline::engines` report the refusal. If the user's own code panicked, it panics again, visibly, when the
//! stage then runs eagerly.
//!
//! 1. The first call puts one hook in front of the process's panic hook, for good. It passes on every panic except
//!    those of a thread inside [`quietly`].
//! 2. A hook that the program sets later replaces it, like any hook: refusals are then printed again, and nothing
//!    else changes.

use crate::scoped::scoped;
use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    static QUIET: RefCell<bool> = const { RefCell::new(false) };
}

/// Runs a function; returns a panic as its message, without printing it.
pub(crate) fn quietly<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |panic| {
            // Thread-locals are gone while a thread ends; a panic then is not ours.
            if !QUIET.try_with(|quiet| *quiet.borrow()).unwrap_or(false) {
                before(panic);
            }
        }));
    });
    let (given, _) = scoped(&QUIET, true, || catch_unwind(AssertUnwindSafe(run)));
    given.map_err(|panic| text_of(panic.as_ref()).unwrap_or_else(|| NO_TEXT.to_owned()))
}

/// Runs a function. A panic that has a text goes on with the place before it.
pub(crate) fn located<T>(place: impl FnOnce() -> String, run: impl FnOnce() -> T) -> T {
    // Unwind safety: the panic goes on.
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| match text_of(panic.as_ref()) {
        Some(text) => resume_unwind(Box::new(format!("{}: {text}", place()))),
        None => resume_unwind(panic),
    })
}

/// What a panic without a text is called.
pub(crate) const NO_TEXT: &str = "(no message)";

/// The text of a panic, if it has one.
pub(crate) fn text_of(panic: &(dyn Any + Send)) -> Option<String> {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
}
