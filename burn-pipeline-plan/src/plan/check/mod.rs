//! The proof that a plan can be run: [`Plan::check`](super::Plan::check) gives a [`CheckedPlan`], or an error that says
//! what is wrong and where.
//!
//! Time and memory are linear in the plan, with dense tables and no hashing:
//!
//! 1. `scan` reads each row once, with one byte of state a pair of stage and microbatch. It decides every rule that one
//!    rank's row can break by itself.
//! 2. `channels` compares the sends of each channel, in order, with its receives.
//!    `vocabulary` compares the order of collectives on all ranks.
//! 3. `deadlock` runs the ranks against each other: transfers only, or, in an unlowered plan, dependencies only,
//!    and collectives of all ranks in both. Ranks
//!    that cannot reach the end stand in a cycle.
//! 4. `collectives` (with `lists`) is asked apart, of a plan that has passed: what the ranks that hold a stage together meet inside of its computations is
//!    known only once a stage is captured.
//!
//! The rules are those of PyTorch's `_validate_schedule` and of its unit-step dry run, made strict. The tests hold a
//! table of what PyTorch accepts and this check refuses.

mod channels;
mod checked;
mod collectives;
mod deadlock;
mod error;
mod lists;
mod options;
mod scan;
mod vocabulary;

pub use checked::CheckedPlan;
pub use collectives::{Among, Collective, CollectiveError, Collectives, StageCollectives, Standing};
pub use error::CheckError;
pub use options::{CheckOptions, Transport};
