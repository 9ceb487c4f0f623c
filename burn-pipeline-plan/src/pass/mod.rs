//! Passes: methods of [`Plan`](crate::plan::Plan) that return a new plan, one per file, with a drawing of before
//! and after.
//!
//! Guarantees: a pass keeps the plan's computations (but for [`train_from`], which drops those without a use), and all
//! but the passes of [`overlap`] are idempotent.
//!
//! The usual order:
//!
//! 1. [`train_from`], if the first stages do not train.
//! 2. [`merge_backward`], if splitting the backward gains nothing.
//! 3. [`with_vocabulary`], for vocabulary parallelism over all ranks.
//! 4. [`with_unshard`] and [`with_reduce_grad`], for data-parallel replicas.
//! 5. [`with_transfers`], which lowers the plan. It visits the cells of all ranks in turn, so the cells that the
//!    rows have by then determine the places of receives. Hence it comes after the passes above.
//! 6. [`with_waits`], which separates the start of each inserted operation from its end, and [`overlap`], which
//!    moves both so that computation hides the time between.
//!
//! [`first_moves`] undoes part of the moves of passes, to find the move after which numbers are wrong.
//!
//! Idle cells have no effect in a plan; [`Plan::without_idle`](crate::plan::Plan::without_idle) removes them before
//! a pass. [`with_idle`] inserts them, for readers that run rows in lockstep.
//!
//! [`train_from`]: crate::plan::Plan::train_from
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
mod train_from;
mod transfers;
mod unshard;
mod vocabulary;
mod waits;

pub use error::PassError;
pub use waits::{Placing, WaitOptions};
