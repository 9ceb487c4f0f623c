//! Bytes that are alive, for the tests to read; [`benches::heap`] counts them.

use benches::heap::{Counting, peak, restart};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

#[global_allocator]
pub(crate) static HEAP: Counting = Counting;

/// Bytes alive now.
pub(crate) fn live() -> usize {
    HEAP.live()
}

/// The most bytes that `body` had alive at once, beyond those alive before it.
pub(crate) fn peak_of(body: impl FnOnce()) -> usize {
    let before = live();
    restart();
    body();
    peak() - before
}

/// Tests that measure take turns.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    settle();
    turn
}

/// Waits until nobody changes the heap: threads of a pipeline end some time after it was dropped.
pub(crate) fn settle() {
    let (mut last, mut quiet) = (live(), 0);
    // Two seconds at most: what still changes then is too little to matter.
    for _ in 0..100 {
        std::thread::sleep(Duration::from_millis(20));
        quiet = if live() == last { quiet + 1 } else { 0 };
        last = live();
        if quiet == 5 {
            return;
        }
    }
}
