//! The bytes allocated on the heap, counted by [`benches::heap`].

use benches::heap::{Counting, peak, restart};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

#[global_allocator]
pub(crate) static HEAP: Counting = Counting;

/// The bytes allocated now.
pub(crate) fn live() -> usize {
    HEAP.live()
}

/// The peak bytes that `body` allocated, beyond those allocated before it.
pub(crate) fn peak_of(body: impl FnOnce()) -> usize {
    let before = live();
    restart();
    body();
    peak() - before
}

/// Serialises tests that measure memory.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    settle();
    turn
}

/// Waits until the heap stops changing: a pipeline's threads end some time after it is dropped.
pub(crate) fn settle() {
    let (mut last, mut quiet) = (live(), 0);
    // Two seconds at most; what still changes then is too little to matter.
    for _ in 0..100 {
        std::thread::sleep(Duration::from_millis(20));
        quiet = if live() == last { quiet + 1 } else { 0 };
        last = live();
        if quiet == 5 {
            return;
        }
    }
}
