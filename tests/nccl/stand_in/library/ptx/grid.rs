//! Runs a kernel: its blocks one after the other, the warps of a block one after the other up to each barrier.

use super::module::Kernel;
use super::space::{Blocks, Memory};
use super::touched::Touched;
use super::warp::{Stop, Warp};
use crate::broken::broken;
use std::ops::Range;
use std::sync::Arc;

/// A kernel with what it is launched with.
#[derive(Clone, Debug)]
pub struct Launch {
    pub kernel: Arc<Kernel>,
    /// The module's variables in global memory.
    pub variables: Arc<[Range<u64>]>,
    pub params: Vec<u8>,
    pub blocks: [u32; 3],
    pub threads: [u32; 3],
    /// The bytes of shared memory beside the kernel's variables.
    pub shared: usize,
    pub memory: Blocks,
}

/// Runs a kernel. Returns the memory that it has touched.
pub fn run(launch: &Launch) -> Touched {
    let Launch { kernel, variables, params, blocks, threads, shared, memory } = launch;
    if kernel.threads.is_some_and(|expected| expected != *threads) {
        broken("a kernel is launched with its number of threads", format!("{}: {threads:?}", kernel.name));
    }
    let count = threads.iter().product::<u32>() as usize;
    let mut memory = Memory::new(&kernel.name, memory, variables, params, kernel.local);
    let mut warps: Vec<Warp> = (0..count.div_ceil(32)).map(|number| Warp::new(kernel, number)).collect();
    for block in 0..blocks.iter().product::<u32>() {
        let block = [block % blocks[0], block / blocks[0] % blocks[1], block / blocks[0] / blocks[1]];
        memory.begin_block(kernel.shared + shared, count);
        warps.iter_mut().for_each(|warp| warp.begin(kernel, block, *blocks, *threads));
        // A warp that has ended counts at every barrier.
        while warps.iter_mut().map(|warp| warp.run(kernel, &mut memory)).filter(|stop| *stop == Stop::Barrier).count()
            > 0
        {}
    }
    memory.touched
}
