//! Code that runs on a tile: some rows of all tensors of a region, few enough to stay in the processor's cache.
//!
//! Guarantees: results do not depend on how rows are cut into tiles, or on the number of threads. They may depend on
//! whether the processor has fused multiply-add.
//!
//! Reading order: [`math`] (functions of one element), [`code`] (instructions, their operands and results),
//! [`elements`] and [`rows`] (vectorised loops), [`run`] (runs instructions, in versions for several processors).

mod code;
mod elements;
mod math;
mod rows;
mod run;

pub(crate) use code::{Argument, Buffer, Instruction, Work};
pub(crate) use math::evaluate;
pub(crate) use rows::add;
pub(crate) use run::{Sum, Tile, run};

#[cfg(test)]
mod tests;
