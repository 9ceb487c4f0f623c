//! A counting allocator that attributes every allocation to the rank whose thread made it.
//!
//! 1. A thread's rank is read from its name (`rank 1`, `rank 1 compute 0`) at its first allocation.
//! 2. Each block starts with a header that holds this rank, so that freeing it on any thread credits the same rank.
//! 3. Peaks are kept per rank; [`restart`] resets them.
//! 4. As a meter ([`MemoryMeter`]) it counts the allocations of threads without a rank.

use burn_pipeline::train::MemoryMeter;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of ranks with a separate account.
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
    /// A new allocator. All of them count into the same accounts.
    pub const fn new() -> Self {
        Self
    }

    /// The bytes allocated now by all threads.
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

/// The peak bytes allocated by a rank's threads since [`restart`].
pub fn peak_of_rank(rank: usize) -> usize {
    PEAK[rank.min(OTHERS)].load(Ordering::Relaxed)
}

/// The peak bytes allocated by all threads since [`restart`].
pub fn peak() -> usize {
    PEAK[ALL].load(Ordering::Relaxed)
}

/// Resets all peaks to the bytes allocated now.
pub fn restart() {
    for (now, peak) in NOW.iter().zip(&PEAK) {
        peak.store(now.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// The account of the calling thread.
fn account() -> usize {
    // The cell of a thread that is being destroyed is gone.
    RANK.try_with(|cell| match cell.get() {
        UNKNOWN => {
            // Getting the name may allocate: those bytes belong to no rank.
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

/// The layout of a block including its header, and the header's size.
fn with_header(layout: Layout) -> Option<(Layout, usize)> {
    let header = layout.align().max(size_of::<usize>());
    Some((Layout::from_size_align(layout.size().checked_add(header)?, header).ok()?, header))
}

// SAFETY: blocks come from `System` with the caller's layout plus a header of at least the caller's alignment, so
// the pointer after the header is aligned and has the caller's size. `dealloc` steps back over the same header and
// frees with the same enlarged layout. The header's usize is written before the pointer is returned, at an address
// aligned for it.
#[allow(unsafe_code, reason = "a global allocator is an unsafe trait")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some((whole, header)) = with_header(layout) else { return std::ptr::null_mut() };
        // SAFETY: the size of `whole` is above zero, since it includes the header.
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
        // SAFETY: `alloc` returned the pointer for this layout, `header` bytes into its block.
        unsafe {
            let block = pointer.sub(header);
            let account = block.cast::<usize>().read();
            NOW[account].fetch_sub(layout.size(), Ordering::Relaxed);
            NOW[ALL].fetch_sub(layout.size(), Ordering::Relaxed);
            System.dealloc(block, whole);
        }
    }
}
