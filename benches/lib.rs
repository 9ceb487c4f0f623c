//! Code that the benchmarks share.

pub mod deferring;
pub mod flags;
pub mod gpt_step;
pub mod heap;
pub mod heavy_head;
pub mod plain;
pub mod roofline;
pub mod sleeping;
pub mod spread;
pub mod torch;
