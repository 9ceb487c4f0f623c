//! Proof that a plan can be run: [`Plan::check`] gives a [`CheckedPlan`], or says precisely why not.
//!
//! Guarantees, for a declared [`Transport`], of every checked plan:
//!
//! - every stage does every microbatch of its route exactly once: `F`, then `B` or `I` and later `W` (or `F`
//!   alone everywhere: a forward-only plan), each on the rank that holds the stage;
//! - if the plan is lowered, each value that crosses ranks is sent once after it is made and received once
//!   before it is used, nothing else is sent, and both ends of a channel (an ordered pair of ranks) agree on the
//!   order;
//! - values that go past a neighbour ([`SkipEdge`](crate::plan::SkipEdge)) are held to the same rules;
//! - each wait comes once, after the one start that it is for and before anything that uses what it waits for;
//! - if stages are unsharded at all, each is unsharded whenever it computes; if gradients are reduced at all,
//!   each stage's are, once, after its last weight gradient;
//! - it cannot deadlock: run under that transport, or any laxer one, every rank reaches the end of its row;
//! - activations and received buffers stay under the caps given.
//!
//! An unlowered plan is checked as if every value appeared where it is needed as soon as it is made.
//!
//! Time and memory are linear in the plan, with dense tables and no hashing:
//!
//! 1. `scan`: one pass over each row, with one byte for each pair of stage and microbatch. All rules that one
//!    rank can see for itself are decided here, since a rank runs its row in order.
//! 2. `channels`: the sends of a channel, in order, against its receives.
//! 3. `deadlock`: ranks are run against each other, transfers alone (or, unlowered, dependencies alone);
//!    whatever is left standing holds a cycle.
//!
//! The rules are those of PyTorch's `_validate_schedule` and of its unit-step dry run, made strict: see the tests
//! for a table of what it accepts and this refuses.

mod channels;
mod checked;
mod deadlock;
mod error;
mod options;
mod scan;

pub use checked::CheckedPlan;
pub use error::{CheckError, Excerpt, Waiting};
pub use options::{CheckOptions, Transport};
