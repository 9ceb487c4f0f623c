//! An allocator that counts live bytes, for benchmarks of memory.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The system's allocator with a count of the bytes that are allocated now.
#[derive(Debug)]
pub struct Counting(AtomicUsize);

impl Counting {
    /// Nothing allocated yet.
    pub const fn new() -> Self {
        Self(AtomicUsize::new(0))
    }

    /// Bytes allocated and not freed.
    pub fn live(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Default for Counting {
    fn default() -> Self {
        Self::new()
    }
}

// SAFETY: every call goes to the system's allocator with the layout that it came with; counting touches no memory
// that was allocated.
#[allow(unsafe_code, reason = "an allocator is an unsafe trait")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.0.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        self.0.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the pointer came from `alloc` above with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}
