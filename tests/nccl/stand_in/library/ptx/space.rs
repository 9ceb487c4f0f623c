//! The memory that a kernel sees. Every access is checked: it must lie within one block, variable or space, and be
//! aligned to its size.

use super::code::Space;
use super::touched::Touched;
use crate::broken::broken;
use std::ops::Range;

/// The allocated blocks of global memory when a kernel begins, in order. Allocations never overlap, and those that
/// begin later are none of the kernel's.
#[derive(Clone, Debug, Default)]
pub struct Blocks(pub Vec<Range<u64>>);

/// The contents of shared memory before a block has written it. Floats of these bytes are noticed.
const POISON: u64 = 0xA5A5_A5A5_A5A5_A5A5;

/// Bytes that are aligned as every access needs them.
#[derive(Default)]
struct Bytes {
    words: Vec<u128>,
    length: usize,
}

impl Bytes {
    fn new(length: usize) -> Self {
        let word = u128::from(POISON) << 64 | u128::from(POISON);
        Self { words: vec![word; length.div_ceil(16)], length }
    }
}

/// The memory of one launch.
pub struct Memory<'a> {
    kernel: &'a str,
    blocks: &'a Blocks,
    variables: &'a [Range<u64>],
    params: Bytes,
    shared: Bytes,
    /// The local memory of all threads of a block, and that of one thread.
    local: Bytes,
    thread: usize,
    /// The block of the last access.
    last: Range<u64>,
    pub touched: Touched,
}

impl<'a> Memory<'a> {
    pub fn new(kernel: &'a str, blocks: &'a Blocks, variables: &'a [Range<u64>], params: &[u8], thread: usize) -> Self {
        let mut memory = Self {
            kernel,
            blocks,
            variables,
            params: Bytes::new(params.len()),
            shared: Bytes::default(),
            local: Bytes::default(),
            thread,
            last: 0..0,
            touched: Touched::default(),
        };
        // SAFETY: the words hold at least as many bytes.
        unsafe { memory.params.words.as_mut_ptr().cast::<u8>().copy_from(params.as_ptr(), params.len()) };
        memory
    }

    /// New shared and local memory, for the next block of threads.
    pub fn begin_block(&mut self, shared: usize, threads: usize) {
        self.shared = Bytes::new(shared);
        self.local = Bytes::new(self.thread * threads);
    }

    /// The host's address of an access by a thread, which is valid for so many bytes.
    pub fn at(&mut self, mut space: Space, mut address: u64, bytes: u64, writes: bool, thread: usize) -> *mut u8 {
        if space == Space::Generic {
            let windows = [Space::Param, Space::Local, Space::Shared];
            space = windows.into_iter().find(|space| address >= space.window()).unwrap_or(Space::Global);
            address -= space.window();
        }
        if !address.is_multiple_of(bytes) {
            self.refuse("a kernel's access is aligned", space, address, bytes, writes);
        }
        let base = match space {
            Space::Global | Space::Generic => {
                self.check_global(address, bytes, writes);
                return address as *mut u8;
            }
            Space::Shared => self.shared.words.as_mut_ptr(),
            Space::Local => self.local.words.as_mut_ptr(),
            Space::Param => self.params.words.as_mut_ptr(),
        };
        let (start, length) = match space {
            Space::Shared => (0, self.shared.length),
            Space::Local => (thread * self.thread, self.thread),
            _ => (0, self.params.length),
        };
        if address.checked_add(bytes).is_none_or(|end| end > length as u64) || (space == Space::Param && writes) {
            self.refuse("a kernel uses memory that it has", space, address, bytes, writes);
        }
        base.cast::<u8>().wrapping_add(start + address as usize)
    }

    fn check_global(&mut self, address: u64, bytes: u64, writes: bool) {
        let within = |range: &Range<u64>| range.start <= address && address.saturating_add(bytes) <= range.end;
        if !within(&self.last) {
            let after = self.blocks.0.partition_point(|block| block.start <= address);
            let block = after.checked_sub(1).map(|place| &self.blocks.0[place]).filter(|block| within(block));
            let Some(found) = block.or_else(|| self.variables.iter().find(|range| within(range))) else {
                self.refuse("a kernel uses memory that is allocated", Space::Global, address, bytes, writes)
            };
            self.last = found.clone();
        }
        self.touched.add(address, bytes, writes);
    }

    /// Ends the process for a vector that is not aligned to its whole size.
    pub fn refuse_vector(&self, space: Space, address: u64, bytes: u64, writes: bool) -> ! {
        self.refuse("a kernel's access is aligned", space, address, bytes, writes)
    }

    fn refuse(&self, rule: &str, space: Space, address: u64, bytes: u64, writes: bool) -> ! {
        let what = if writes { "writes" } else { "reads" };
        broken(rule, format!("{} {what} {bytes} bytes at {address:#x} of {space:?}", self.kernel))
    }
}

/// Reads up to 8 bytes.
///
/// # Safety
/// They must be valid and aligned.
pub unsafe fn read(place: *const u8, bytes: u64) -> u64 {
    // SAFETY: the function's contract.
    unsafe {
        match bytes {
            1 => u64::from(place.read()),
            2 => u64::from(place.cast::<u16>().read()),
            4 => u64::from(place.cast::<u32>().read()),
            _ => place.cast::<u64>().read(),
        }
    }
}

/// Writes up to 8 bytes.
///
/// # Safety
/// As for [`read`].
pub unsafe fn write(place: *mut u8, bytes: u64, value: u64) {
    // SAFETY: the function's contract.
    unsafe {
        match bytes {
            1 => place.write(value as u8),
            2 => place.cast::<u16>().write(value as u16),
            4 => place.cast::<u32>().write(value as u32),
            _ => place.cast::<u64>().write(value),
        }
    }
}
