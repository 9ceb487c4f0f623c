//! What the benchmarks share.

pub mod plain;
pub mod spread;
