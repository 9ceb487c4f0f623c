//! What transports are made of: to write one outside this crate.
//!
//! 1. [`Letter`]: what two processes tell each other, as bytes.
//! 2. [`Mailbox`]: what has come, for the thread that waits for it; threads that serve a link put it there.
//! 3. [`Post`] and [`Mesh`]: connections between all ranks, served by threads; [`meet_at`] and [`meet_by_link`] make them.
//! 4. [`same_groups`], [`all_reduce_by_messages`]: groups of ranks.

pub use super::group::same_groups;
pub use super::letter::Letter;
pub use super::mailbox::{Awaited, Contents, Mailbox, Whole};
pub use super::reduce::{Tensors, by_messages as all_reduce_by_messages};
pub use super::tcp::{Connections, Heard, Mesh, Packet, Post, Sink, meet_at, meet_by_link};
