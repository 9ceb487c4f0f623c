//! Commands from the caller to the ranks, and their replies.
//!
//! Guarantees: a command has one type of reply, so a reply of another kind cannot be written. A call returns within the
//! timeout after the last progress, with the replies of all ranks or an error that names the first cause. After a
//! failed call all ranks continue together if ranks and links are sound; otherwise every later call fails at once. When
//! ranks are processes, a call returns the same on every process, and different calls are detected before anything
//! runs.
//!
//! 1. [`Ranks::ask`] sends a [`Command`] to the thread of every rank of this process, and collects the replies.
//! 2. Each thread runs it on its [`Rank`](super::step::Rank) (`worker`).
//! 3. When ranks are processes, each has one such thread. Before the command runs, all ranks compare their calls
//!    (`agreement`); afterwards they exchange their replies (`exchange`), so that every caller gets all of them. A call
//!    that has changed weights ends when all ranks have changed theirs.
//! 4. When a call has failed and all ranks have replied, they recover together ([`Rank::recover`](super::step::Rank)).
//!    `execute/README.md` says what is restored, and what closes the pipeline.
//!
//! Read `command`, `ranks`, `worker`; then `agreement` and `exchange` for processes.

mod agreement;
mod command;
mod exchange;
mod ranks;
mod worker;

pub(crate) use agreement::{Job, agree_on_job, agree_on_optimizer, agree_on_parameters};
pub(crate) use command::{Call, Command};
pub(crate) use exchange::{Exchange, exchange_facts, gather_all, gather_results, gather_tensors};
pub(crate) use ranks::{Ranks, Refuse};
