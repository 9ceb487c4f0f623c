//! Passes: methods of [`Plan`](crate::plan::Plan) that give a new plan, one file each, with a picture of before and after.
//!
//! Guarantees: a pass keeps what the plan computes, and all but the passes of [`overlap`] are idempotent.
//!
//! The usual order:
//!
//! 1. [`merge_backward`], where splitting the backward gains nothing.
//! 2. [`with_vocabulary`], where embedding and head are to be spread over all ranks.
//! 3. [`with_unshard`] and [`with_reduce_grad`], for data-parallel replicas.
//! 4. [`with_transfers`], which lowers the plan. It visits the cells of all ranks in turn, so the cells that stand in the
//!    rows at that moment decide where receives go. Hence it comes after those before.
//! 5. [`with_waits`], which separates the start of each inserted operation from its end, and [`overlap`], which moves
//!    both so that computation hides the time between.
//!
//! [`first_moves`] undoes part of what passes have done, to find the move after which numbers are wrong.
//!
//! Idle cells mean nothing to a plan; [`Plan::without_idle`](crate::plan::Plan::without_idle) removes them before a pass.
//! [`with_idle`] puts them in, for readers whose rows are locked to steps.
//!
//! [`merge_backward`]: crate::plan::Plan::merge_backward
//! [`with_vocabulary`]: crate::plan::Plan::with_vocabulary
//! [`with_unshard`]: crate::plan::Plan::with_unshard
//! [`with_reduce_grad`]: crate::plan::Plan::with_reduce_grad
//! [`with_transfers`]: crate::plan::Plan::with_transfers
//! [`with_idle`]: crate::plan::Plan::with_idle
//! [`with_waits`]: crate::plan::Plan::with_waits
//! [`first_moves`]: crate::plan::Plan::first_moves

mod error;
mod idle;
mod merge_backward;
mod moves;
pub mod overlap;
mod reduce_grad;
mod transfers;
mod unshard;
mod vocabulary;
mod waits;

pub use error::PassError;
pub use waits::{Placing, WaitOptions};
