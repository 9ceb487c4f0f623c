//! The driver's functions that allocate and free memory, by their names.
//!
//! 1. The plain ones work for all streams: a free waits for the whole device, and so may hold up everything.
//! 2. The asynchronous ones work in the order of one stream, and wait for nothing. They count as writes of the whole
//!    block, so that a use that has no order with them is found. The memory itself is kept until nothing can use it.

use crate::driver::{Handle, OUT_OF_MEMORY, SUCCESS, Status, answer, number, queue};
use crate::order::Use;
use crate::queue::{Device, Mark, block_launches, device};
use std::ops::Range;
use std::sync::Arc;

#[unsafe(no_mangle)]
extern "C" fn cuMemAlloc_v2(address: *mut u64, bytes: usize) -> Status {
    match device().memory.allocate(bytes) {
        Some(block) => answer(address, block),
        None => OUT_OF_MEMORY,
    }
}

/// Waits for the whole device, as the driver's does, and blocks launches meanwhile, as the driver's may.
#[unsafe(no_mangle)]
extern "C" fn cuMemFree_v2(address: u64) -> Status {
    let _blocked = block_launches();
    let mark = device().before_free(address);
    mark.wait();
    device().free(address);
    SUCCESS
}

/// Memory for a stream's later jobs; those of other streams need an order with them.
#[unsafe(no_mangle)]
extern "C" fn cuMemAllocAsync(address: *mut u64, bytes: usize, stream: Handle) -> Status {
    let Some(block) = device().memory.allocate(bytes) else { return OUT_OF_MEMORY };
    queue(stream, vec![Use::write("an allocation", block, bytes)], || ());
    answer(address, block)
}

/// Waits for nothing: the stream's earlier jobs, and what comes before them, may still use the memory.
#[unsafe(no_mangle)]
extern "C" fn cuMemFreeAsync(address: u64, stream: Handle) -> Status {
    let (block, mark) = device().retire(number(stream), address);
    std::thread::spawn(move || {
        mark.wait();
        device().release(&block);
    });
    SUCCESS
}

impl Device {
    /// Checks that memory may be freed now, and returns a mark after all possible uses.
    pub fn before_free(&mut self, address: u64) -> Arc<Mark> {
        let block = self.memory.block(address);
        self.log.free(&block);
        let streams = self.all_streams();
        self.mark(&streams)
    }

    /// Frees memory after all possible uses, among them those of kernels that have ended meanwhile.
    pub fn free(&mut self, address: u64) {
        let block = self.memory.block(address);
        self.log.free(&block);
        self.memory.free(address);
    }

    /// Frees memory in a stream's order. Returns the block, and a mark after all possible uses; [`Self::release`]
    /// follows it.
    pub fn retire(&mut self, stream: usize, address: u64) -> (Range<u64>, Arc<Mark>) {
        let block = self.memory.block(address);
        let used = Use { range: block.clone(), writes: true, what: "a free" };
        self.queue(stream, vec![used], false, || ());
        self.memory.retire(address);
        let streams = self.all_streams();
        (block, self.mark(&streams))
    }

    /// Frees memory that was retired, when nothing can use it.
    pub fn release(&mut self, block: &Range<u64>) {
        self.log.free(block);
        self.memory.free(block.start);
    }
}
