//! Links: how ranks reach each other. One trait, one file for each transport.
//!
//! A [`Link`] moves [`Message`]s between ranks and gathers small values from all of them. It does not depend on the
//! types of stages or on schedules: the plan determines what is sent when, and the executor sends it. Every wait
//! has a deadline, and a rank that fails wakes all others.
//!
//! | transport | where | ranks are |
//! |---|---|---|
//! | threads | [`Threads`] | threads of this process |
//! | TCP | [`TcpLink`] | processes, on one machine or many, without MPI |
//! | MPI | `MpiLink` of the crate `burn-pipeline-mpi` | processes, on one machine or many |
//! | NCCL | `NcclLink` of the crate `burn-pipeline-nccl` | processes or threads, each with an NVIDIA GPU |
//!
//! Threads pass each other payloads without a wait for the device. On CubeCL devices all threads of a process
//! therefore share one queue per device, and sent tensors have their own memory; `hand_over.rs` says why.
//!
//! [`Delayed`] makes any link as slow as a given network, for experiments. [`kit`] has the parts of transports, for
//! writing one outside of this crate. [`Launch`] reads a process's rank from the environment.
//!
//! Reading order: `header.rs` (what a message is), `link_trait.rs`, `collectives.rs`, `threads.rs` (the simplest
//! transport), `kit/` (messages as bytes), `tcp/`.

mod collectives;
pub mod conformance;
mod delayed;
mod error;
mod forward;
mod gather;
mod hand_over;
mod header;
pub mod kit;
mod launch;
mod launcher;
mod link_trait;
mod monitor;
mod moving_deadline;
mod rendezvous;
mod shared_link;
mod tcp;
mod threads;
mod wire_error;

pub use collectives::{Collectives, FlatCollective};
pub use delayed::Delayed;
pub(crate) use error::PANICKED;
pub use error::{Failure, LinkError};
pub(crate) use gather::gather;
pub(crate) use hand_over::{one_queue, own_fusion_queue};
pub use header::{Header, Message, MessageKind};
pub use launch::{Launch, LaunchError};
pub use launcher::Launcher;
pub use link_trait::Link;
pub use monitor::{Activity, Monitor};
pub(crate) use moving_deadline::Pace;
pub(crate) use moving_deadline::TIMES as PROLONGED;
pub use rendezvous::{Admission, Rendezvous, Secret};
pub(crate) use shared_link::{SharedLink, StageEnd, TRANSFER};
#[cfg(fuzzing)]
#[doc(hidden)]
pub use tcp::fuzzing;
pub use tcp::{TcpError, TcpLink};
#[cfg(test)]
pub(crate) use threads::on_threads;
pub use threads::{ThreadLink, Threads};
pub use wire_error::WireError;
