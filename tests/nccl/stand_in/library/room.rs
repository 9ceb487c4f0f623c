//! A room, where the ranks of a communicator meet: a file that their processes map. It starts as zeros; every field
//! is atomic, or guarded by an atomic.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

/// The maximum number of a communicator's ranks, and of its splits.
pub const RANKS: usize = 8;
pub const SPLITS: usize = 64;
/// The bytes that go through the room at once.
pub const CHUNK: usize = 1 << 16;

/// One end of an operation: its number within its kind, and its elements.
#[repr(C)]
pub struct Post {
    count: AtomicU64,
    kind: AtomicU32,
    /// Written last.
    number: AtomicU64,
    /// The number of the last operation whose other end this end has seen.
    pub seen: AtomicU64,
    /// The number of the last operation that has been queued.
    pub queued: AtomicU64,
}

impl Post {
    pub fn write(&self, number: u64, count: usize, kind: u32) {
        self.count.store(count as u64, Ordering::Relaxed);
        self.kind.store(kind, Ordering::Relaxed);
        self.number.store(number, Ordering::Release);
    }

    /// The count and type, once the end has reached that number.
    pub fn read(&self, number: u64) -> Option<(usize, u32)> {
        let there = self.number.load(Ordering::Acquire) >= number;
        there.then(|| (self.count.load(Ordering::Relaxed) as usize, self.kind.load(Ordering::Relaxed)))
    }
}

/// Bytes in transit. `filled` says whose turn it is.
#[repr(C)]
pub struct Chunk {
    pub filled: AtomicU64,
    bytes: UnsafeCell<[u8; CHUNK]>,
}

impl Chunk {
    pub fn bytes(&self) -> *mut u8 {
        self.bytes.get().cast()
    }
}

/// Transfers from one rank to another.
#[repr(C)]
pub struct Pair {
    pub sender: Post,
    pub receiver: Post,
    pub chunk: Chunk,
}

/// A rank's part of a split.
#[repr(C)]
pub struct Split {
    pub color: AtomicI32,
    pub key: AtomicI32,
    pub there: AtomicU32,
}

/// What a rank publishes.
#[repr(C)]
pub struct Member {
    pub there: AtomicU32,
    pub finalized: AtomicU32,
    pub splits: [Split; SPLITS],
    pub sum: Post,
    pub part: Chunk,
    pub taken: AtomicU64,
    /// For `board.rs`: the group that it runs (0: none), the ranks that it waits for, how often it has looked, and
    /// how often it has progressed.
    pub group: AtomicU64,
    pub missing: AtomicU64,
    pub looks: AtomicU64,
    pub moves: AtomicU64,
}

#[repr(C)]
pub struct Room {
    pub members: [Member; RANKS],
    pub pairs: [[Pair; RANKS]; RANKS],
}

unsafe extern "C" {
    fn mmap(
        address: *mut c_void,
        length: usize,
        protection: c_int,
        flags: c_int,
        file: c_int,
        offset: i64,
    ) -> *mut c_void;
}

const READ_AND_WRITE: c_int = 3;
const SHARED: c_int = 1;

impl Room {
    /// Opens the room of that name. It stays mapped while the process lives, since transfers may be using it.
    pub fn open(name: &str) -> &'static Self {
        let folder = std::env::var("STAND_IN_ROOMS").map_or_else(|_| std::env::temp_dir(), PathBuf::from);
        let path = folder.join(format!("room-{name}"));
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap();
        file.set_len(size_of::<Self>() as u64).unwrap();
        // SAFETY: the file is as long as the type, whose fields may all be zero, and is never unmapped. Other
        // processes change it only through the same type.
        unsafe {
            let place = mmap(std::ptr::null_mut(), size_of::<Self>(), READ_AND_WRITE, SHARED, file.as_raw_fd(), 0);
            assert!(place as isize != -1, "a room cannot be mapped");
            &*place.cast::<Self>()
        }
    }
}

// SAFETY: the only fields that are not atomic are chunks' bytes, which one end uses at a time.
unsafe impl Sync for Room {}
