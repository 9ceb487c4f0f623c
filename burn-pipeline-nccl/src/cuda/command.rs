//! What the thread that serves a link is asked to do, and how it answers.

use super::gpu::Event;
use super::inbox::Slot;
use burn_cubecl::tensor::CubeTensor;
use burn_pipeline::link::kit::{Frame, Packed};
use burn_pipeline::link::{FlatCollective, LinkError};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Instant;

/// A request to the thread, from its own rank or from the threads that read its connections.
pub(crate) enum Command {
    /// Offer these tensors to a rank. `own` is the message's place in the inbox, if a rank sends to itself.
    Send { to: usize, frame: Vec<u8>, tensors: Vec<CubeTensor>, own: Option<(Frame, Slot)> },
    /// Send a message over the connection, with its tensors as bytes.
    SendBytes { to: usize, packed: Packed },
    /// A rank offers tensors.
    Offered { from: usize, frame: Frame, slot: Slot },
    /// A rank's note about the order of transfers has arrived.
    Note { from: usize, note: Vec<u8> },
    /// Make communicators for groups, in this order. All ranks are ready for it.
    FormGroups { groups: Vec<Vec<usize>>, deadline: Instant, done: Answer<()> },
    /// Make one communicator for each group of ranks that give the same colour. All ranks are ready for it.
    FormOwn { color: Option<u16>, deadline: Instant, done: Answer<()> },
    /// Take part in a collective of a group.
    Collect(Collect),
    /// The link is dropped.
    Close,
}

/// The number of the group that holds this rank's stages, which is none of those of [`Command::FormGroups`].
pub(crate) const OWN: u32 = u32::MAX;

/// A rank's part in a collective of a group.
pub(crate) struct Collect {
    pub(crate) group: u32,
    pub(crate) collective: FlatCollective,
    /// What it is, in words: the same for all members.
    pub(crate) what: String,
    pub(crate) round: u64,
    pub(crate) members: Vec<usize>,
    /// `None` for a tensor that this rank lacks.
    pub(crate) tensors: Vec<Option<CubeTensor>>,
    pub(crate) done: Answer<Vec<Option<CubeTensor>>>,
}

/// An answer, and the event behind the transfer that brings it, if that may not have completed.
pub(crate) type Answered<T> = Result<(T, Option<Arc<Event>>), LinkError>;

/// Where an answer goes.
pub(crate) type Answer<T> = Sender<Answered<T>>;

/// What a collective gives; `None` for a tensor that all members lack.
pub(super) type Results = Vec<Option<CubeTensor>>;

/// The group of the ranks that hold this one's stages with it.
#[derive(Default)]
pub(super) struct Own {
    pub(super) ranks: Vec<usize>,
    /// Where the results come of collectives that were begun and not ended, oldest first.
    pub(super) begun: VecDeque<Receiver<Answered<Results>>>,
}
