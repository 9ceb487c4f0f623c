//! The work of one rank: run its part of a batch, reduce gradients, step its weights.
//!
//! Guarantees: all ranks that run the same commands in the same order get the same losses, the same gradient norm and
//! the same scaling, with any transport. Functions here return the first error of their rank; the thread that runs them
//! passes it on to all other ranks.
//!
//! Read `rank` (the type, and how a rank starts), `contract` (the loss of a batch), `batch` (forwards and backwards),
//! `gradients` (sums over replicas, scaling, clipping), `apply` (the optimizer's step, here or by the caller), `equal`
//! (makes copies equal), `copies` (checks that they are); then `forward_state` (refused running statistics), `replicas`
//! (bidirectional placements), `outputs` (outputs, gradients of the batch and weights, sent between processes) and
//! `metadata` (checks of tensor specs); and `recover` (after a failure).

mod apply;
mod batch;
mod contract;
mod copies;
mod equal;
mod forward_state;
mod gradients;
mod metadata;
mod outputs;
mod panic;
mod rank;
mod recover;
mod replicas;

pub(crate) use apply::ApplyOutcome;
pub(crate) use batch::BatchOutcome;
pub(crate) use copies::Drifted;
pub(crate) use gradients::Finished;
pub(crate) use metadata::metadata_plan;
pub(crate) use outputs::{deliver, deliver_of_batch, deliver_outputs};
pub(crate) use panic::caught;
pub(crate) use rank::{Rank, Settings};
pub(crate) use recover::Recovered;
