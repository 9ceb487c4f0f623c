//! What the benchmarks share.

pub mod deferring;
pub mod heap;
pub mod plain;
pub mod spread;
