//! What the benchmarks share.

pub mod heap;
pub mod plain;
pub mod spread;
