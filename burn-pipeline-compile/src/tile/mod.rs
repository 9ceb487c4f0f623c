//! Code that runs on a tile: some rows of all tensors of a region, small enough to stay in the processor's cache.
//!
//! Guarantees: results do not depend on how rows are cut into tiles, nor on the number of threads; they may depend on the
//! processor, which has fused multiply-add or has not.
//!
//! Reading order: [`math`] (functions of one element), [`code`] (instructions), [`buffer`] (what they read and write), [`elements`] and [`rows`] (loops that the
//! compiler vectorises), [`run`] (instructions one after the other, in versions for several processors).

mod buffer;
mod code;
mod elements;
mod math;
mod rows;
mod run;

pub(crate) use buffer::Buffer;
pub(crate) use code::{Argument, Instruction, Work};
pub(crate) use math::evaluate;
pub(crate) use rows::add;
pub(crate) use run::{Sum, Tile, run};

#[cfg(test)]
mod tests;
