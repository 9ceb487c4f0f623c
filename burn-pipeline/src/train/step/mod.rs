//! What one rank does: run its part of a batch, reduce gradients, step its weights.
//!
//! Guarantees: all ranks that run the same commands in the same order get the same losses, the same gradient norm and
//! the same scaling, whatever the transport. Functions here return the first error of their rank; the thread that runs
//! them passes it on to all other ranks.
//!
//! Read `rank` (the type, and how a rank starts), `contract` (what the loss of a batch is), `batch` (forwards and
//! backwards), `gradients` (sums over replicas, scaling, clipping), `members` (gradients compared within a group), `apply` (the optimizer's step, here or at the caller); then `forward_state` (what is refused of running statistics), `replicas`,
//! `outputs` and `metadata` for bidirectional placements, evaluations over processes, and checks of tensor specs; and `recover` for what follows a failure.

mod apply;
mod batch;
mod contract;
mod forward_state;
mod gradients;
mod members;
mod metadata;
mod outputs;
mod panic;
mod rank;
mod recover;
mod replicas;

pub(crate) use apply::ApplyOutcome;
pub(crate) use batch::BatchOutcome;
pub(crate) use metadata::metadata_plan;
pub(crate) use outputs::deliver;
pub(crate) use panic::caught;
pub(crate) use rank::{Rank, Settings};
pub(crate) use recover::Recovered;
