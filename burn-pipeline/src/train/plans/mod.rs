//! The plans that a pipeline runs: built from a schedule or given, lowered, checked, and kept.
//!
//! Read `source` (schedule or plan), `vocabulary` (vocabulary-parallel layers), `replication` (how many ranks run a
//! row), then `checked` (the plan for a batch of a given size, and the part that each data-parallel replica runs).

mod checked;
mod replication;
mod source;
mod vocabulary;

pub(crate) use checked::{Parts, Plans, fingerprint, split_stages};
pub(crate) use replication::Replication;
pub(crate) use source::Source;
pub(crate) use vocabulary::VocabularyPass;
