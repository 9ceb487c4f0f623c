//! Runs test cases that mostly wait, for a timeout or the disk, several at a time.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Runs a check on each case, in order, on `threads` threads.
pub fn for_each_at_once<T: Sync>(threads: usize, cases: &[T], check: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    let lane = || {
        while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            check(case);
        }
    };
    // A check that panics ends its thread; the scope then panics in the test.
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(lane))));
}
