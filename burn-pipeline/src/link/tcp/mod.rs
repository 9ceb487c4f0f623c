//! Ranks as processes over TCP: nothing but the network is needed, no MPI.
//!
//! Guarantees: a send never waits; messages of one rank to another keep their order; every wait ends at its deadline, and
//! its error says which ranks still answer; a rank that fails informs all others at once; a rank whose connection ends
//! without [`Envelope::Close`](super::kit::Envelope::Close) (killed, or its machine restarted) is named at once.
//!
//! 1. The processes find each other at rank 0's address, as launchers give it, or over another link (`connect.rs`). Both
//!    ends of a connection prove first that they know the job's secret (`key.rs`).
//! 2. Every two ranks have one connection. At each end, one thread reads and one writes (`mesh.rs`, `reader.rs`,
//!    `writer.rs`), so that messages travel while ranks compute.
//! 3. A message is its frame and the bytes of its tensors. Gathers, questions and failures are envelopes too (`link.rs`).
//!
//! It is meant for small jobs without MPI, and as the control connection of links between GPUs. Only the ranks of the job
//! can connect. What they send is not encrypted: who can change packets on the way can change data.

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
mod writer;

pub use error::TcpError;
pub use link::TcpLink;
pub use mesh::{Connections, Mesh};
pub use packet::Received;
