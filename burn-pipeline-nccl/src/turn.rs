//! What the thread that serves a link is told, and what it gives back.

use crate::communicator::Collective;
use crate::gpu::Event;
use burn::tensor::Bytes;
use burn_cubecl::tensor::CubeTensor;
use burn_pipeline::link::LinkError;
use burn_pipeline::link::kit::Frame;
use std::collections::VecDeque;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// What the thread is told, by its own rank or by the threads that read its connections.
pub(crate) enum Turn {
    /// Offer these tensors to a rank.
    Send { to: usize, frame: Vec<u8>, tensors: Vec<CubeTensor>, own: Option<(Frame, Slot)> },
    /// A rank offers tensors.
    Offered { from: usize, frame: Frame, slot: Slot },
    /// A rank says something about the order.
    Note { from: usize, note: Vec<u8> },
    /// Make communicators for groups, in this order; all ranks are there.
    Form { groups: Vec<Vec<usize>>, deadline: Instant, done: Answer<()> },
    /// Take part in a collective of a group.
    Collect(Collect),
    /// The link is dropped.
    Close,
}

/// A rank's part in a collective.
pub(crate) struct Collect {
    pub(crate) group: u32,
    pub(crate) round: u64,
    pub(crate) members: Vec<usize>,
    pub(crate) operation: Collective,
    /// Tensors that this rank lacks are `None`.
    pub(crate) tensors: Vec<Option<CubeTensor>>,
    pub(crate) done: Answer<Vec<Option<CubeTensor>>>,
}

/// An answer, and the event behind the transfer that brings it, if it may not be over yet.
pub(crate) type Answered<T> = Result<(T, Option<Arc<Event>>), LinkError>;

/// Where an answer goes.
pub(crate) type Answer<T> = Sender<Answered<T>>;

/// The place for a message's content in the order of its sender's messages.
#[derive(Clone, Default)]
pub(crate) struct Slot(Arc<Mutex<Option<Content>>>);

/// What came.
pub(crate) enum Content {
    /// Bytes, over the connection.
    Host(Vec<Bytes>),
    /// Tensors on the GPU, and the event behind the transfer that brings them, if it may not be over yet.
    Device(Vec<CubeTensor>, Option<Arc<Event>>),
}

impl Slot {
    pub(crate) fn fill(&self, content: Content) {
        *self.lock() = Some(content);
    }

    pub(crate) fn is_full(&self) -> bool {
        self.lock().is_some()
    }

    pub(crate) fn take(&self) -> Option<Content> {
        self.lock().take()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Content>> {
        // Poisoning is of no interest: it is either there or not.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Messages of each rank, in order; contents come when their transfer is done.
#[derive(Clone)]
pub(crate) struct Inbox(Arc<Mutex<Queues>>);

/// Of each rank.
type Queues = Vec<VecDeque<(Frame, Slot)>>;

impl Inbox {
    pub(crate) fn new(ranks: usize) -> Self {
        Self(Arc::new(Mutex::new((0..ranks).map(|_| VecDeque::new()).collect())))
    }

    pub(crate) fn push(&self, from: usize, frame: Frame, slot: Slot) {
        self.lock()[from].push_back((frame, slot));
    }

    /// The next message of a rank, if all of it is here.
    pub(crate) fn take(&self, from: usize) -> Option<(Frame, Content)> {
        let mut queues = self.lock();
        queues[from].front().filter(|(_, slot)| slot.is_full())?;
        let (frame, slot) = queues[from].pop_front()?;
        slot.take().map(|content| (frame, content))
    }

    fn lock(&self) -> MutexGuard<'_, Queues> {
        // Poisoning is of no interest: queues stay whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
