//! Messages that have arrived or are announced, in each sender's order.
//!
//! A message gets its place when its frame arrives. Its content follows, over the connection or from GPU to GPU;
//! content on either way may overtake the other.

use super::gpu::Event;
use burn::tensor::Bytes;
use burn_cubecl::tensor::CubeTensor;
use burn_pipeline::link::kit::Frame;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;

/// The place for a message's content.
#[derive(Clone, Default)]
pub(crate) struct Slot(Arc<Mutex<Option<Content>>>);

/// The content of a message.
pub(crate) enum Content {
    /// Bytes, over the connection.
    Host(Vec<Bytes>),
    /// Tensors on the GPU, and the event after the transfer that brings them, if that may not have completed.
    Device(Vec<CubeTensor>, Option<Arc<Event>>),
}

impl Slot {
    pub(crate) fn fill(&self, content: Content) {
        *self.0.lock() = Some(content);
    }

    fn is_full(&self) -> bool {
        self.0.lock().is_some()
    }

    fn take(&self) -> Option<Content> {
        self.0.lock().take()
    }
}

/// The messages of each rank, in order.
#[derive(Clone)]
pub(crate) struct Inbox(Arc<Mutex<Queues>>);

/// One queue for each rank.
type Queues = Vec<VecDeque<(Frame, Slot)>>;

impl Inbox {
    pub(crate) fn new(ranks: usize) -> Self {
        Self(Arc::new(Mutex::new((0..ranks).map(|_| VecDeque::new()).collect())))
    }

    /// Adds a message whose content may follow later.
    pub(crate) fn push(&self, from: usize, frame: Frame, slot: Slot) {
        self.0.lock()[from].push_back((frame, slot));
    }

    /// Takes the next message of a rank, if its content has arrived.
    pub(crate) fn take(&self, from: usize) -> Option<(Frame, Content)> {
        let mut queues = self.0.lock();
        queues[from].front().filter(|(_, slot)| slot.is_full())?;
        let (frame, slot) = queues[from].pop_front()?;
        slot.take().map(|content| (frame, content))
    }
}
