//! What transports are made of, for writing one outside of this crate.
//!
//! A transport moves [`Envelope`]s between ranks, with the bytes of a message's tensors behind its envelope. In steps:
//!
//! 1. To send a [`Message`](super::Message), turn it into bytes ([`Packed`]) and send [`Envelope::Message`] with its
//!    frame, then the bodies. The receiver reads the [`Frame`], receives into [`Frame::buffers`], and puts both into its
//!    [`Mailbox`] ([`Mailbox::deliver`]).
//! 2. Hand every other envelope to [`Mailbox::handle`], and send back the envelope that it gives.
//! 3. [`Link::receive`](super::Link::receive) is [`Mailbox::receive`], [`Link::probe`](super::Link::probe) is
//!    [`Mailbox::probe`]. [`Link::all_gather`](super::Link::all_gather) sends [`Envelope::Gather`] to all others and calls
//!    [`Mailbox::gather`]. All waits observe deadlines and failures.
//! 4. [`Link::monitor`](super::Link::monitor) is the mailbox. A failure goes to all others as [`Envelope::Failed`], and
//!    [`Envelope::Close`] is the last envelope of a link.
//! 5. Operations over groups are made of messages unless the transport overrides them: [`all_reduce`], and the others in
//!    [`Link`](super::Link). A transport with communicators checks with [`same_groups`] that all ranks form the same.
//! 6. A transport may send a repeated message under the shorter frame [`Repeat`].
//!
//! [`Endpoint`] is all of this over TCP. A transport whose tensors travel another way (from GPU to GPU) uses it for
//! everything else: [`Packet::Offer`] announces a message, [`Packet::Note`] carries its own bytes.

pub(in crate::link) mod collective;
pub(in crate::link) mod envelope;
pub(in crate::link) mod frame;
pub(in crate::link) mod group_messages;
pub(in crate::link) mod mailbox;
pub(in crate::link) mod packed;
pub(in crate::link) mod repeat;
pub(in crate::link) mod same_groups;
mod sealed;
pub(in crate::link) mod tensor_list;
pub(in crate::link) mod waiting;

pub use super::tcp::{Connections, Endpoint, Mesh, Packet, Received, Sink, connect_at, connect_over};
pub use super::wire_error::WIRE_VERSION;
pub use collective::all_reduce;
pub use envelope::Envelope;
pub use frame::Frame;
pub use group_messages::GroupMessages;
pub use mailbox::{Contents, Delivery, Mailbox};
pub use packed::Packed;
pub use repeat::Repeat;
pub use same_groups::same_groups;
pub use tensor_list::TensorList;
pub use waiting::Awaited;
