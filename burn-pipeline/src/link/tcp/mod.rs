//! Ranks as processes over TCP, without MPI.
//!
//! Guarantees: a send never waits; messages of one rank to another keep their order; every wait ends at its
//! deadline, and its error says which ranks still answer; a rank that fails tells all others at once; a rank whose
//! connection ends without [`Envelope::Close`](super::kit::Envelope::Close) (killed, or its machine restarted) is
//! named at once.
//!
//! 1. The processes find each other at rank 0's address, which launchers set, or over another link (`connect.rs`).
//!    Both ends of a connection first prove that they know the job's secret (`key.rs`).
//! 2. Every two ranks have one connection. At each end, one thread reads and one writes (`mesh.rs`, `reader.rs`,
//!    `packet.rs`), so messages travel while ranks compute.
//! 3. A message is its frame and the bytes of its tensors. Gathers, questions and failures are envelopes too
//!    (`link.rs`).
//!
//! It is meant for small jobs without MPI, and as the control connection of links between GPUs. The secret
//! keeps strangers from joining or disturbing a job. Data is not encrypted: whoever can change packets in transit can
//! change it, but someone who can do that in a cluster's network can do worse.

mod acceptor;
mod address;
mod connect;
mod dial;
mod error;
#[cfg(fuzzing)]
pub mod fuzzing;
mod handshake;
mod key;
mod link;
mod look_up;
mod mesh;
mod packet;
mod pending;
mod reader;

pub use error::TcpError;
pub use link::TcpLink;
pub use mesh::{Connections, Mesh};
pub use packet::Received;
