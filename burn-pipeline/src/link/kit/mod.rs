//! The parts of transports, for writing one outside of this crate.
//!
//! A transport moves [`Envelope`]s between ranks, each with a message's tensors after it. It implements [`Peers`],
//! and [`Endpoint`] makes a [`Link`](super::Link) of it. In steps:
//!
//! 1. Connect the ranks, and give each a [`Mailbox`].
//! 2. Implement [`Peers::send`] so that it does not wait for the receiver: a thread for each connection writes the
//!    length of [`Envelope::write`], its bytes, then the tensors.
//! 3. A second thread for each connection reads. For [`Envelope::Message`] it reads the [`Frame`], receives the
//!    tensors into [`Frame::buffers`], and puts both into the mailbox ([`Mailbox::deliver`]). It gives every other
//!    envelope to [`Mailbox::handle`], and sends the reply if there is one. What [`Mailbox::fail`] returns goes to all
//!    other ranks. After [`Envelope::Close`], which goes to `handle` too, the thread ends.
//! 4. A connection that ends without [`Envelope::Close`] is a failure of that rank: call
//!    [`abort`](super::Monitor::abort) on the [`Peers`]. All waits then end with an error, on every rank.
//! 5. Run the [conformance suite](super::conformance) with two, three and five ranks.
//!
//! The repository's example `unix_socket_link` is such a transport in 200 lines. Beyond that:
//!
//! - If a transport can do better than the default of a `Link` method, it wraps the endpoint, forwards the other
//!   methods with [`forward_link!`](crate::forward_link), and waits with [`Endpoint::wait_for`].
//! - A message that repeats an earlier one may travel under the shorter frame [`Repeat`].
//! - The end of a thread that may be in a call that never returns is awaited with a timeout ([`ended_within`]).
//! - [`Mesh`] is a TCP connection between every two ranks. A transport whose tensors travel another way (from GPU
//!   to GPU) uses it for everything else: [`Mesh::offer`] announces a message, [`Mesh::note`] carries the
//!   transport's own bytes.

mod ending;
pub(in crate::link) mod endpoint;
pub(in crate::link) mod envelope;
pub(in crate::link) mod frame;
pub(in crate::link) mod mailbox;
pub(in crate::link) mod packed;
pub(in crate::link) mod waiting;

pub use super::moving_deadline::{LONGEST_TIMEOUT, Pace};
pub use super::tcp::{Connections, Mesh, Received};
pub(crate) use super::wire_error::WIRE_VERSION;
pub use ending::ended_within;
pub use endpoint::{Endpoint, Peers};
pub use envelope::{Answer, Envelope};
pub use frame::{Frame, Repeat};
pub use mailbox::Mailbox;
pub use packed::Packed;
