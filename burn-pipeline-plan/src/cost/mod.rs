//! Costs: how long each action takes, how many bytes it holds, and what it takes to cross from rank to rank.
//!
//! A [`Profile`] is plain data. The runtime measures one and writes it, a person may write one by hand, and
//! [`Profile::uniform`] makes the idealised one that papers reason with. The simulator reads it through
//! [`Costs`], which binds it to a placement and refuses one that does not fit.
//!
//! Ranks that each measured a profile share their [median](Profile::median), so that they decide alike.
//!
//! Before a model is cut it is a list of [`Layers`]; a [`Partition`] cuts it into stages and gives their profile.

mod bind;
mod dtype;
mod error;
mod json;
mod layer;
mod layers_json;
mod link;
mod median;
mod partition;
mod profile;
mod uniform;

pub use bind::Costs;
pub use dtype::Dtype;
pub use error::ProfileError;
pub use layer::{Layer, LayerKind, Layers};
pub use link::{LinkCost, LinkCosts, LinkOverride};
pub use partition::{
    Measure, MemoryLimits, OptimalPartition, Partition, PartitionError, PartitionOptions, PartitionReport, Pattern,
    PatternError, PatternProblem, StageReport, optimal_partition,
};
pub use profile::{Profile, StageCost};
pub use uniform::UniformCosts;
