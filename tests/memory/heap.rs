//! The system's allocator, counting the bytes that are alive, for the tests to read.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static HEAP: Counting = Counting;

fn grown(bytes: usize) {
    let live = LIVE.fetch_add(bytes, Ordering::Relaxed) + bytes;
    PEAK.fetch_max(live, Ordering::Relaxed);
}

// SAFETY: every call is handed to the system's allocator as it is; counting touches no memory of the caller's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps `alloc`'s contract.
        let memory = unsafe { System.alloc(layout) };
        if !memory.is_null() {
            grown(layout.size());
        }
        memory
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps `alloc_zeroed`'s contract.
        let memory = unsafe { System.alloc_zeroed(layout) };
        if !memory.is_null() {
            grown(layout.size());
        }
        memory
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps `dealloc`'s contract.
        unsafe { System.dealloc(memory, layout) };
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
    }
}

/// Bytes alive now.
pub(crate) fn live() -> usize {
    LIVE.load(Ordering::Relaxed)
}

/// The most bytes that `body` had alive at once, beyond those alive before it.
pub(crate) fn peak_of(body: impl FnOnce()) -> usize {
    let before = live();
    PEAK.store(before, Ordering::Relaxed);
    body();
    PEAK.load(Ordering::Relaxed) - before
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
