//! What a user calls on a pipeline.

pub(crate) mod batch;
mod metadata;
