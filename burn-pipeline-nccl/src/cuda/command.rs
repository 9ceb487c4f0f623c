//! Commands to the thread that serves a link, and its answers.

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
    /// Send these tensors to another rank, from GPU to GPU.
    Send { to: usize, frame: Vec<u8>, tensors: Vec<CubeTensor> },
    /// Send a message over the connection, with its tensors as bytes.
    SendBytes { to: usize, packed: Packed },
    /// The frame of a message whose tensors come from GPU to GPU.
    Arrived { from: usize, frame: Frame, slot: Slot },
    /// A rank's note about turns.
    Note { from: usize, note: Vec<u8> },
    /// Answer when every message of this rank so far is launched.
    WhenLaunched { done: Answer<()> },
    /// Make communicators by one split for each number, in this order: each of the ranks that pass the same colour. All
    /// ranks are ready for it.
    Form { splits: Vec<(u32, Option<u16>)>, deadline: Instant, done: Answer<()> },
    /// Take part in a collective of a group.
    Collect(Collect),
    /// The link is dropped.
    Close,
}

/// The number of this rank's tensor-parallel group, which no set of ranks has.
pub(crate) const OWN: u32 = u32::MAX;

/// A rank's part in a collective of a group.
pub(crate) struct Collect {
    pub(crate) group: u32,
    pub(crate) collective: FlatCollective,
    /// Its description, the same on all members.
    pub(crate) what: String,
    pub(crate) round: u64,
    pub(crate) members: Vec<usize>,
    /// `None` for a tensor that this rank lacks.
    pub(crate) tensors: Vec<Option<CubeTensor>>,
    pub(crate) done: Answer<Vec<Option<CubeTensor>>>,
}

/// An answer, and the event after the transfer that brings it, if the transfer may not have completed.
pub(crate) type Answered<T> = Result<(T, Option<Arc<Event>>), LinkError>;

/// Where an answer goes.
pub(crate) type Answer<T> = Sender<Answered<T>>;

/// The results of a collective; `None` for a tensor that all members lack.
pub(super) type Results = Vec<Option<CubeTensor>>;

/// This rank's tensor-parallel group.
#[derive(Default)]
pub(super) struct Own {
    pub(super) ranks: Vec<usize>,
    /// Where the results of open collectives arrive, oldest first.
    pub(super) begun: VecDeque<Receiver<Answered<Results>>>,
}
