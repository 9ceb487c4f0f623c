//! The plans that a pipeline runs: built from a schedule or given, lowered, checked, and kept.
//!
//! Read `source` (what is run), `spreading` (what of a vocabulary all ranks have pieces of), `replication` (how many ranks run a row), then `checked` (which plan runs a batch of a given size), then `parts` (which part of a
//! batch each data-parallel replica runs).

mod checked;
mod parts;
mod replication;
mod source;
mod spreading;

pub(crate) use checked::{Plans, fingerprint, split_stages};
pub(crate) use parts::Parts;
pub(crate) use replication::Replication;
pub(crate) use source::Source;
pub(crate) use spreading::Spreading;
