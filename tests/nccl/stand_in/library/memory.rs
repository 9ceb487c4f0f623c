//! Device memory, which is the process's own. New memory is filled with nonzero bytes, so that reads of unwritten
//! memory are noticed.

use crate::broken::broken;
use crate::faults::faults;
use crate::ptx::Blocks;
use std::alloc::{Layout, alloc, dealloc};
use std::collections::BTreeMap;
use std::ops::Range;

/// The driver's alignment.
const ALIGNMENT: usize = 512;
/// The contents of new memory.
const POISON: u8 = 0xA5;

/// The allocated blocks: address and bytes.
#[derive(Default)]
pub struct Memory {
    blocks: BTreeMap<u64, usize>,
    /// Blocks that were freed in a stream's order, which jobs may still use.
    retired: BTreeMap<u64, usize>,
    held: usize,
}

impl Memory {
    /// Allocates memory; returns `None` if there is not enough.
    pub fn allocate(&mut self, bytes: usize) -> Option<u64> {
        if faults().memory.is_some_and(|memory| self.held + bytes > memory) {
            return None;
        }
        // SAFETY: the layout's size is not zero, since the driver refuses zero; all bytes are within it.
        let address = unsafe {
            let pointer = alloc(layout(bytes));
            assert!(!pointer.is_null(), "the host has no memory left");
            pointer.write_bytes(POISON, bytes);
            pointer as u64
        };
        self.blocks.insert(address, bytes);
        self.held += bytes;
        Some(address)
    }

    /// The bytes of a block that is about to be freed.
    pub fn block(&self, address: u64) -> Range<u64> {
        match self.blocks.get(&address) {
            Some(&bytes) => address..address + bytes as u64,
            None => broken("memory is not allocated", "it is freed"),
        }
    }

    /// Takes a block away from later calls, until [`Self::free`].
    pub fn retire(&mut self, address: u64) {
        let bytes = self.blocks.remove(&address).unwrap();
        self.retired.insert(address, bytes);
    }

    /// Frees a block. The caller has checked that nothing uses it.
    pub fn free(&mut self, address: u64) {
        let bytes = self.blocks.remove(&address).or_else(|| self.retired.remove(&address)).unwrap();
        self.held -= bytes;
        // SAFETY: it was allocated with this layout.
        unsafe { dealloc(address as *mut u8, layout(bytes)) };
    }

    /// All blocks, in order.
    pub fn blocks(&self) -> Blocks {
        Blocks(self.blocks.iter().map(|(&start, &bytes)| start..start + bytes as u64).collect())
    }

    /// Checks that a range is within one block.
    pub fn check(&self, range: &Range<u64>, what: &str) {
        let block = self.blocks.range(..=range.start).next_back();
        if range.end > range.start && block.is_none_or(|(start, bytes)| range.end > start + *bytes as u64) {
            broken("memory is not allocated", format!("{what}, {} bytes", range.end - range.start));
        }
    }
}

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes.max(1), ALIGNMENT).unwrap()
}
