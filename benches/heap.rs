//! A counting allocator that charges every allocation to the rank whose thread made it.
//!
//! 1. A thread's rank is read off its name (`rank 1`, `rank 1 compute 0`) at its first allocation.
//! 2. Each block starts with a header that says which rank is charged, so that freeing it on any thread credits the
//!    same rank.
//! 3. Peaks are kept per rank, and start anew with [`restart`].
//! 4. As a meter ([`MemoryMeter`]) it counts what threads of no rank have allocated.

use burn_pipeline::train::MemoryMeter;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Ranks with an account each.
const RANKS: usize = 8;
/// The account of all other threads.
const OTHERS: usize = RANKS;
/// The account of all threads together.
const ALL: usize = RANKS + 1;
const ACCOUNTS: usize = RANKS + 2;
const UNKNOWN: usize = usize::MAX;

static NOW: [AtomicUsize; ACCOUNTS] = [const { AtomicUsize::new(0) }; ACCOUNTS];
static PEAK: [AtomicUsize; ACCOUNTS] = [const { AtomicUsize::new(0) }; ACCOUNTS];

thread_local! {
    static RANK: Cell<usize> = const { Cell::new(UNKNOWN) };
}

/// The allocator; set it with `#[global_allocator]`.
#[derive(Debug)]
pub struct Counting;

impl Counting {
    /// The allocator; all of them count into the same accounts.
    pub const fn new() -> Self {
        Self
    }

    /// Bytes that are allocated now, by all threads.
    pub fn live(&self) -> usize {
        NOW[ALL].load(Ordering::Relaxed)
    }
}

impl MemoryMeter for Counting {
    fn allocated(&self) -> usize {
        NOW[OTHERS].load(Ordering::Relaxed)
    }

    fn take_peak(&self) -> usize {
        PEAK[OTHERS].swap(self.allocated(), Ordering::Relaxed)
    }
}

impl Default for Counting {
    fn default() -> Self {
        Self::new()
    }
}

/// The largest number of bytes that a rank's threads had allocated at once since [`restart`].
pub fn peak_of_rank(rank: usize) -> usize {
    PEAK[rank.min(OTHERS)].load(Ordering::Relaxed)
}

/// The largest number of bytes that all threads together had allocated at once since [`restart`].
pub fn peak() -> usize {
    PEAK[ALL].load(Ordering::Relaxed)
}

/// Starts all peaks anew from what is allocated now.
pub fn restart() {
    for (now, peak) in NOW.iter().zip(&PEAK) {
        peak.store(now.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// The account of the thread that asks.
fn account() -> usize {
    // A thread that is being torn down has no cell any more.
    RANK.try_with(|cell| match cell.get() {
        UNKNOWN => {
            // Asking for the name may allocate: those bytes belong to no rank.
            cell.set(OTHERS);
            let thread = std::thread::current();
            let number = thread.name().and_then(|name| name.strip_prefix("rank ")?.split(' ').next()?.parse().ok());
            let account = number.filter(|&rank: &usize| rank < OTHERS).unwrap_or(OTHERS);
            cell.set(account);
            account
        }
        account => account,
    })
    .unwrap_or(OTHERS)
}

/// The layout of a block with its header in front, and the header's size.
fn with_header(layout: Layout) -> Option<(Layout, usize)> {
    let header = layout.align().max(size_of::<usize>());
    Some((Layout::from_size_align(layout.size().checked_add(header)?, header).ok()?, header))
}

// SAFETY: blocks come from `System` with a layout that is the caller's plus a header of at least the caller's
// alignment, so the pointer behind the header is aligned and has the caller's size; `dealloc` steps back over the
// same header and frees with the same enlarged layout. The header's usize is written before the pointer is given
// out, at an address aligned for it.
#[allow(unsafe_code, reason = "a global allocator is an unsafe trait")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some((whole, header)) = with_header(layout) else { return std::ptr::null_mut() };
        // SAFETY: `whole` has a size above zero, since the header has one.
        let block = unsafe { System.alloc(whole) };
        if block.is_null() {
            return block;
        }
        let account = account();
        for account in [account, ALL] {
            let now = NOW[account].fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
            PEAK[account].fetch_max(now, Ordering::Relaxed);
        }
        // SAFETY: the block is at least `header` bytes long and aligned for a usize.
        unsafe {
            block.cast::<usize>().write(account);
            block.add(header)
        }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        let Some((whole, header)) = with_header(layout) else { return };
        // SAFETY: the pointer was given out by `alloc` with this layout, `header` bytes into its block.
        unsafe {
            let block = pointer.sub(header);
            let account = block.cast::<usize>().read();
            NOW[account].fetch_sub(layout.size(), Ordering::Relaxed);
            NOW[ALL].fetch_sub(layout.size(), Ordering::Relaxed);
            System.dealloc(block, whole);
        }
    }
}
