//! Cuts of a model into contiguous stages.
//!
//! Guarantees: a [`Partition`] covers every layer once, in order, and no stage is empty.
//!
//! 1. `cut`: [`Partition`], even, from boundaries, or greedy by weight; [`Partition::profile`] gives the costs of
//!    its stages to the simulator and the planner.
//! 2. `pattern`: [`Pattern`], a model and its cut as a line of text.
//! 3. `optimal`: [`Partition::optimal`] minimises the load of the busiest rank, under a memory cap. It uses
//!    `problem`, and `label` if a rank has several stages.
//! 4. `report`: [`PartitionReport`] lists the layers, seconds and bytes of each stage and rank.

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
