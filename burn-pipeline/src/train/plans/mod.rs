//! The plans that a pipeline runs.

pub(crate) mod parts;
pub(crate) mod source;
