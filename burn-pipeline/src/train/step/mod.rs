//! What one rank does.

mod contract;
pub(crate) mod metadata;
mod outputs;
pub(crate) mod rank;
mod replicas;

pub use contract::{Contract, evaluated_loss};
pub use rank::{ApplyOutcome, BatchOutcome, Rank};
