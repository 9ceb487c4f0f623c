//! Setting a pipeline up and starting it.

pub(crate) mod builder;
pub(crate) mod start;

pub use builder::{Builder, StageContext};
