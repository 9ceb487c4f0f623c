//! Running what may panic as a way to refuse, without a word of it on the standard error.
//!
//! Burn's capture device has no other way to refuse: reading a value, or a tensor of another device, panics. The refusal is
//! reported by `tracing` and `Pipeline::engines`, and a panic of the user's own code comes again when the stage then runs
//! eagerly, in full view.
//!
//! 1. The first call puts one hook in front of the process's panic hook, for good. It hands on every panic but those of a
//!    thread that is inside [`quietly`].
//! 2. A hook that the program sets later takes its place, as any hook would: refusals are then printed again, and nothing
//!    else changes.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs it; a panic is returned as its message, and not printed.
pub(crate) fn quietly<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    struct Restore(bool);

    impl Drop for Restore {
        fn drop(&mut self) {
            QUIET.set(self.0);
        }
    }

    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |panic| {
            // Thread-locals are gone while a thread ends; a panic there is not ours.
            if !QUIET.try_with(Cell::get).unwrap_or(false) {
                before(panic);
            }
        }));
    });
    let _restore = Restore(QUIET.replace(true));
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| crate::execute::panic_message(panic.as_ref()))
}
