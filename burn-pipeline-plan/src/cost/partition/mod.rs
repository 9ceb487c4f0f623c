//! Cuts of a model into stages: contiguous, every stage with at least one layer.
//!
//! Guarantees: a [`Partition`] covers every layer once, in order, and no stage is empty.
//!
//! 1. `cut`: [`Partition`], made evenly, from boundaries, or greedily by weight; [`Partition::profile`] gives the costs of
//!    its stages to the simulator and the planner.
//! 2. `pattern`: [`Pattern`], a model and its cut as a line of text.
//! 3. `optimal`: [`Partition::optimal`] makes the load of the busiest rank as small as possible, under a memory cap. It
//!    works on a `problem`, and where a rank has several stages with `label`s.
//! 4. `report`: [`PartitionReport`] lists what each stage and rank holds.

mod cut;
mod label;
mod optimal;
mod options;
mod pattern;
mod problem;
mod report;

pub use cut::Partition;
pub use optimal::OptimalPartition;
pub use options::{Measure, PartitionOptions};
pub use pattern::Pattern;
pub use report::{PartitionReport, StageReport};
