//! Device memory: the process's own, with other bytes than zeros in it when it is new, so that what is read without having
//! been written shows.

use crate::broken::broken;
use crate::faults::faults;
use std::alloc::{Layout, alloc, dealloc};
use std::collections::BTreeMap;
use std::ops::Range;

/// As the driver's.
const ALIGNMENT: usize = 512;
/// What new memory holds.
const POISON: u8 = 0xA5;

/// What is allocated: address and bytes.
#[derive(Default)]
pub struct Memory {
    blocks: BTreeMap<u64, usize>,
    held: usize,
}

impl Memory {
    /// New memory; `None` if there is none left.
    pub fn allocate(&mut self, bytes: usize) -> Option<u64> {
        if faults().memory.is_some_and(|memory| self.held + bytes > memory) {
            return None;
        }
        // SAFETY: the layout has a size, as the driver refuses none; all bytes are within it.
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

    /// Frees a block. The caller has checked that nothing uses it.
    pub fn free(&mut self, address: u64) {
        let bytes = self.blocks.remove(&address).unwrap();
        self.held -= bytes;
        // SAFETY: it was allocated with this layout.
        unsafe { dealloc(address as *mut u8, layout(bytes)) };
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
