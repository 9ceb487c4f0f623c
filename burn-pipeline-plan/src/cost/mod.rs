//! Costs: the seconds and bytes of each action, and the seconds of a message from rank to rank.
//!
//! 1. A [`Profile`] has the costs of a model's stages ([`StageCost`]), of the links between ranks ([`LinkCosts`]),
//!    and of the pieces of a vocabulary-parallel embedding and head ([`VocabularyCost`]). It is plain data: the
//!    runtime measures one, a person can write one as JSON, and [`Profile::uniform`] makes the idealised one of the
//!    papers.
//! 2. Ranks that each measured a profile use its [median](Profile::median), so that all make the same decisions.
//! 3. A model that is not cut yet is a list of [`Layers`]. A [`Partition`] cuts the layers into stages and gives
//!    their profile; [`Partition::optimal`] finds the best one.

mod amount;
mod bind;
mod dtype;
mod error;
mod factors;
mod layer;
mod layers;
mod layers_json;
mod link;
mod median;
mod partition;
mod partition_error;
mod profile;
mod stage_cost;
mod uniform;
mod vocabulary;

pub(crate) use bind::Costs;
pub use dtype::Dtype;
pub use error::ProfileError;
pub use factors::Factors;
pub use layer::{Layer, Peaks};
pub use layers::Layers;
pub use link::{LinkCost, LinkCosts, LinkOverride};
pub use partition::{Measure, OptimalPartition, Partition, PartitionOptions, PartitionReport, Pattern, StageReport};
pub use partition_error::PartitionError;
pub use profile::Profile;
pub use stage_cost::StageCost;
pub use uniform::UniformCosts;
pub use vocabulary::VocabularyCost;
