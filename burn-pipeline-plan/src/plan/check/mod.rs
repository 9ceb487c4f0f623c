//! The proof that a plan can be run: [`Plan::check`](super::Plan::check) gives a [`CheckedPlan`], or an error that says
//! what is wrong and where.
//!
//! Guarantees, for a declared [`Transport`], of every checked plan:
//!
//! - every stage does every microbatch of its route exactly once, on the rank that holds the stage: `F`, then `B`, or
//!   `I` and later `W`; a plan for evaluation has `F` alone everywhere;
//! - in a lowered plan, each value that crosses ranks is sent once after it is computed and received once before it is
//!   used, nothing else is sent, and both ends of a channel (an ordered pair of ranks) have the same order; values along
//!   skip edges ([`SkipEdge`](super::SkipEdge)) follow the same rules;
//! - each wait comes once, after the start that it is for and before every use of what it waits for;
//! - if any stage is unsharded, each stage is unsharded whenever it computes; if any stage's gradients are reduced, each
//!   stage's are, once, after its last weight gradient;
//! - it cannot deadlock: under that transport, or any laxer one, every rank reaches the end of its row;
//! - activations, received payloads and sent payloads stay under the caps given.
//!
//! An unlowered plan is checked as if every value were available to its user as soon as it is computed.
//!
//! Time and memory are linear in the plan, with dense tables and no hashing:
//!
//! 1. `scan` reads each row once, with one byte of state a pair of stage and microbatch. It decides every rule that one
//!    rank's row can break by itself.
//! 2. `channels` compares the sends of each channel, in order, with its receives.
//! 3. `deadlock` runs the ranks against each other: transfers only, or, in an unlowered plan, dependencies only. Ranks
//!    that cannot reach the end stand in a cycle.
//!
//! The rules are those of PyTorch's `_validate_schedule` and of its unit-step dry run, made strict. The tests hold a
//! table of what PyTorch accepts and this check refuses.

mod channels;
mod checked;
mod deadlock;
mod error;
mod options;
mod scan;

pub use checked::CheckedPlan;
pub use error::{CheckError, Excerpt, Waiting};
pub use options::{CheckOptions, Transport};
