//! The executor: runs one rank's row of a checked plan.
//!
//! Guarantees: tasks run exactly in the plan's order; a receive is posted where the plan says and awaited where its
//! value is used; every value is moved, used once, and dropped; only a [`CheckedPlan`] is accepted, so the executor
//! cannot deadlock (the README beside this file has the argument); a panic in user code, a refusal, or a lost peer
//! ends the run of every rank with an error that names it.
//!
//! The README says how a rank walks its row: its tables, its messages, and its waits. Beyond that:
//!
//! 1. An error of a row gets its place in the plan, and its task's inputs and their senders (`locate.rs`).
//! 2. Fused actions may be interleaved, and adjacent `W`s may run in one call, if the user chose that.
//! 3. Exchanges between data-parallel replicas run beside the row (`data_parallel`). The timeline shows a whole
//!    reduction as one event, and the wait as `WAIT_REDUCE_GRAD`; likewise for `UNSHARD`.
//! 4. If the groups of two stages differ in size, values between them are re-cut: a transfer is a message with each
//!    counterpart (`recut`).
//! 5. The loss of a stage that ends its route stays on the device, and is read after the row.
//! 6. Gradients of the batch itself, if they are wanted, are kept for the report (`batch_gradients`).
//!
//! Read `interpreter.rs` first, then `compute.rs` (`F`, `I`, `B`, `W`), `messages.rs` (sends and receives),
//! `skips.rs`, `interleave.rs`, `vocabulary/`, and `replicas.rs` with `sharding.rs`. They build on `executor.rs` (the
//! rank), `run_state.rs`, `values.rs`, `transfer.rs` and `recut`.

mod batch_gradients;
mod compute;
mod context;
mod device;
mod error;
mod exchange;
mod executor;
mod interleave;
mod interpreter;
mod locate;
mod losses;
mod members;
mod messages;
mod options;
mod outcome;
mod recut;
mod replicas;
mod run;
mod run_state;
mod sharding;
mod skips;
mod specs;
mod transfer;
mod values;
mod vocabulary;

pub(crate) use context::Purpose;
pub use context::RunContext;
pub use error::ExecuteError;
pub(crate) use executor::{Aside, Executor, panic_message};
pub(crate) use locate::tell_failure;
pub(crate) use options::RunOptions;
pub use options::{FusedActions, Tuning};
pub use outcome::MicrobatchLoss;
pub(crate) use outcome::{Measured, OfBatch, RankOutcome};
pub(crate) use recut::received_by_first;
pub(crate) use run::{ReplicaShare, Run, Seeding};
pub(crate) use specs::SpecCheck;

#[cfg(doc)]
use burn_pipeline_plan::plan::CheckedPlan;
