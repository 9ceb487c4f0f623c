//! Links: how ranks reach each other. One trait, one file a transport.
//!
//! A link moves [`Message`]s between ranks and gathers small values over all of them. It knows
//! nothing of stages' types or of schedules; the plan says what is sent when, and the executor asks for it.
//! Every wait has a deadline, and a rank that fails wakes every other one.
//!
//! | transport | file | ranks are |
//! |---|---|---|
//! | threads | `threads.rs` | threads of this process |
//! | TCP | `tcp/` | processes, on one machine or many, without MPI |
//! | NCCL | the crate `burn-pipeline-nccl` | processes or threads, each with its NVIDIA GPU |
//! | MPI | the crate `burn-pipeline-mpi` | processes, on one machine or many |
//!
//! [`Delayed`] (`delayed.rs`) makes any of them as slow as a given network, for experiments.
//! Links between processes carry messages as bytes: `wire.rs`.

mod activity;
#[cfg(feature = "flex")]
pub mod conformance;
mod delayed;
mod error;
mod expected;
mod forward;
mod gather;
mod group;
mod header;
pub mod kit;
mod launch;
mod letter;
mod mailbox;
mod reduce;
mod tcp;
mod threads;
mod wire;
mod wire_error;

pub use activity::Activity;
pub use delayed::Delayed;
pub use error::{Failure, LinkError};
pub use expected::Expected;
pub(crate) use expected::expect_all;
pub use gather::gather;
pub use header::{Direction, Header, Message};
pub use launch::{Launch, LaunchError, Launcher};
pub use tcp::{Place, TcpError, TcpLink};
pub use threads::{ThreadLink, Threads};
pub(crate) use wire::checksum;
pub use wire::{Frame, Packed, Repeat, WIRE_VERSION};
pub use wire_error::WireError;

use crate::plan::Transport;
use crate::stage::{AnyTensor, Payload};
use std::sync::Arc;
use std::time::Instant;

/// One rank's end of a link.
///
/// Messages from one rank to another arrive in the order in which they were sent.
pub trait Link: Send {
    /// This rank.
    fn rank(&self) -> usize;

    /// How many ranks there are.
    fn ranks(&self) -> usize;

    /// The transport model that plans must be proved for.
    fn transport(&self) -> Transport;

    /// What the link can do: plans are proved for it.
    fn capabilities(&self) -> Capabilities {
        Capabilities { transport: self.transport(), ordered: true, overlaps: true }
    }

    /// A view of the link for somebody who does not hold it.
    fn watch(&self) -> Arc<dyn Watch>;

    /// Brings tensors that this process holds to this rank's device; a handle that is there already is moved.
    fn bring(&self, payload: Payload) -> Payload;

    /// Says what this rank is doing, for the messages of ranks that wait for it.
    fn announce(&mut self, activity: Activity);

    /// Sends a message; returns once the payload may be let go of here.
    ///
    /// # Errors
    /// If another rank failed, or the deadline passed.
    fn send(&mut self, to: usize, message: Message, deadline: Instant) -> Result<(), LinkError>;

    /// Waits for the message with this header, which must be the next one from that rank that was not asked for.
    ///
    /// # Errors
    /// If another rank failed, the deadline passed, or another message is next.
    fn receive(&mut self, from: usize, header: Header, deadline: Instant) -> Result<Payload, LinkError>;

    /// Is told what messages from and to this rank will hold, so that receives may be posted, and memory be there, before
    /// the first of them comes. Both ends are told the same in the same order, and all ranks meet before the next
    /// message goes. A message of another form must arrive all the same.
    ///
    /// Links that move handles, or read one stream of bytes in its order, have nothing to post: for them it does
    /// nothing. A link around another one passes it on.
    ///
    /// # Errors
    /// If the link has ended.
    fn expect(&mut self, messages: &[Expected]) -> Result<(), LinkError> {
        let _ = messages;
        Ok(())
    }

    /// Waits until the next message of one of these ranks is here, and says whose and which: to receive it takes no more
    /// waiting. `None` when the deadline passes (one that has passed looks, and does not wait), and where a link cannot
    /// tell, which is what it does unless a transport can. A link that wraps another one hands this on.
    ///
    /// # Errors
    /// If another rank failed.
    fn arrived(&mut self, from: &[usize], deadline: Instant) -> Result<Option<(usize, Header)>, LinkError> {
        let _ = (from, deadline);
        Ok(None)
    }

    /// Gives every rank the bytes of all ranks, in rank order. All ranks must call it, in the same order. Typed values go
    /// through [`gather`].
    ///
    /// # Errors
    /// If another rank failed, or the deadline passed.
    fn all_gather(&mut self, bytes: Vec<u8>, deadline: Instant) -> Result<Vec<Vec<u8>>, LinkError>;

    /// Forms groups of ranks for [`Link::all_reduce`] and the like. All ranks call it once, with the same list, members or
    /// not: transports that make a communicator for each group (MPI) need every rank to be there, in the same order.
    ///
    /// # Errors
    /// If another rank failed, or the deadline passed.
    fn form_groups(&mut self, groups: &[Vec<usize>], deadline: Instant) -> Result<(), LinkError> {
        let _ = (groups, deadline);
        Ok(())
    }

    /// Sums lists of tensors over a group of ranks: every member gets the same sums, to the last bit. A tensor
    /// that one member lacks counts as zero there; one that all lack stays `None`.
    ///
    /// All members call it for the same groups in the same order. `number` is the group's place in the list given to
    /// [`Link::form_groups`], `ranks` its members in ascending order.
    ///
    /// The list goes as one buffer an element type. Unless a transport has something better: the lowest rank receives the others' lists in rank order, adds them
    /// in that order, and sends the sums back, so each other member sends and receives one message.
    ///
    /// # Errors
    /// If another rank failed, or the deadline passed.
    fn all_reduce(
        &mut self,
        number: usize,
        ranks: &[usize],
        tensors: Vec<Option<AnyTensor>>,
        deadline: Instant,
    ) -> Result<Vec<Option<AnyTensor>>, LinkError> {
        reduce::by_messages(self, number, ranks, tensors, deadline)
    }

    /// Sends a message to a member of a group: in the order of the group's messages where the transport keeps these
    /// apart from all others (MPI), else in the order of all messages.
    ///
    /// # Errors
    /// As [`Link::send`]; if there is no such group.
    fn send_in(&mut self, group: usize, to: usize, message: Message, deadline: Instant) -> Result<(), LinkError> {
        let _ = group;
        self.send(to, message, deadline)
    }

    /// Waits for the next message of a member of a group; see [`Link::send_in`].
    ///
    /// # Errors
    /// As [`Link::receive`]; if there is no such group.
    fn receive_in(
        &mut self,
        group: usize,
        from: usize,
        header: Header,
        deadline: Instant,
    ) -> Result<Payload, LinkError> {
        let _ = group;
        self.receive(from, header, deadline)
    }

    /// Sums lists of tensors over a group, and gives each member its piece of each sum: the tensor is flattened and cut
    /// into one piece a member, in the order of ranks, the last ones shorter where it is not even. Members, numbers
    /// and calls as for [`Link::all_reduce`]; every piece has the bits that a sum in the order of ranks gives.
    ///
    /// # Errors
    /// If another rank failed, the deadline passed, or members give different lists.
    fn reduce_scatter(
        &mut self,
        number: usize,
        ranks: &[usize],
        tensors: Vec<AnyTensor>,
        deadline: Instant,
    ) -> Result<Vec<AnyTensor>, LinkError> {
        group::reduce_scatter(self, number, ranks, tensors, deadline)
    }

    /// Gives every member the flat tensors that the members' pieces make in the order of ranks: what
    /// [`Link::reduce_scatter`] has cut.
    ///
    /// # Errors
    /// As [`Link::reduce_scatter`].
    fn all_gather_pieces(
        &mut self,
        number: usize,
        ranks: &[usize],
        pieces: Vec<AnyTensor>,
        deadline: Instant,
    ) -> Result<Vec<AnyTensor>, LinkError> {
        group::all_gather_pieces(self, number, ranks, pieces, deadline)
    }

    /// Gives every member the tensors of one of them; what the others give is not looked at.
    ///
    /// # Errors
    /// If another rank failed, or the deadline passed.
    fn broadcast(
        &mut self,
        number: usize,
        ranks: &[usize],
        root: usize,
        tensors: Vec<AnyTensor>,
        deadline: Instant,
    ) -> Result<Vec<AnyTensor>, LinkError> {
        group::broadcast(self, number, ranks, root, tensors, deadline)
    }

    /// Returns once all ranks have called it.
    ///
    /// # Errors
    /// If another rank failed, or the deadline passed: then a rank that did not come is named.
    fn barrier(&mut self, deadline: Instant) -> Result<(), LinkError> {
        self.all_gather(Vec::new(), deadline).map(drop)
    }

    /// Tells all other ranks that this one failed; the first failure counts.
    fn abort(&mut self, message: String);
}

/// What a link can do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// When sends end: plans are proved not to deadlock under it.
    pub transport: Transport,
    /// Messages from one rank to another arrive in the order in which they were sent, which the executor relies on.
    pub ordered: bool,
    /// Messages travel while ranks compute.
    pub overlaps: bool,
}

/// A view of a link for somebody who does not hold it: the thread that waits for a rank of this process.
pub trait Watch: Send + Sync + std::fmt::Debug {
    /// What a rank was last seen doing; of ranks in other processes, what they said last.
    fn activity(&self, rank: usize) -> Activity;

    /// A number that changes whenever a rank of this process turns to something else.
    fn progress(&self) -> u64;

    /// Notes a failure that somebody else saw (a rank that does not answer), and tells every rank.
    fn abort(&self, failure: Failure);

    /// The first failure, if there was one.
    fn failure(&self) -> Option<Failure>;
}
