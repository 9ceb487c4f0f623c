//! The proof that a plan can run: [`Plan::check`](super::Plan::check) returns a [`CheckedPlan`], or an error that
//! says what is wrong and where.
//!
//! Time and memory are linear in the plan, with dense tables and no hashing:
//!
//! 1. `scan` reads each row once, with one byte of state per pair of stage and microbatch. It checks every rule
//!    that one rank's row can break alone.
//! 2. `channels` compares the sends of each channel, in order, with its receives. `vocabulary` compares the order
//!    of collectives on all ranks.
//! 3. `deadlock` runs the ranks against each other: only transfers, or, in an unlowered plan, only dependencies,
//!    and in both the collectives of all ranks. Ranks that cannot reach the end wait in a cycle.
//! 4. `collectives` (with `lists`) is a separate check of a plan that has passed: the collectives inside a stage's
//!    computations are known only once the stage is captured.
//!
//! The rules are those of PyTorch's `_validate_schedule` and of its unit-step dry run, made strict. The tests have
//! a table of plans that PyTorch accepts and this check refuses.

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
