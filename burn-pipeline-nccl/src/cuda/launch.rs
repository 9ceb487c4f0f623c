//! A launch: the memory of a collective that is ready for it, what tells the next rank, and what is kept until it has
//! completed.

use super::command::Answer;
use super::gpu::Event;
use super::inbox::Slot;
use super::tensors::{Held, Pinned};
use crate::host::turns::Note;
use burn_cubecl::tensor::CubeTensor;
use burn_pipeline::link::kit::Mesh;
use std::sync::Arc;
use std::time::Instant;

/// The memory that a collective reads and writes.
pub(crate) struct Ready {
    pub(super) from: Pinned,
    pub(super) to: Pinned,
}

/// A launch that may not have completed.
pub(crate) struct Flight {
    pub(super) event: Arc<Event>,
    /// A participating rank, for errors.
    pub(super) peer: usize,
    pub(super) since: Instant,
    /// Memory that the launch reads.
    #[expect(dead_code, reason = "it is kept until the launch has completed, and never read")]
    pub(super) held: Vec<Pinned>,
    /// Memory of tensors that were released before the launch had completed.
    pub(super) pins: Vec<Held>,
    pub(super) landing: Landing,
}

/// Where received tensors go.
pub(super) enum Landing {
    Nowhere,
    Slot(Slot, Vec<Pinned>),
    Sums(Vec<Option<Pinned>>, Answer<Vec<Option<CubeTensor>>>),
}

/// What another rank must read to launch the same.
pub(super) enum Announcement {
    Note(usize, Note),
    Frame(usize, Vec<u8>),
}

impl From<(usize, Note)> for Announcement {
    fn from((to, note): (usize, Note)) -> Self {
        Self::Note(to, note)
    }
}

impl Announcement {
    pub(super) fn send(self, mesh: &Mesh) {
        match self {
            Self::Note(to, note) => mesh.note(to, note.write()),
            Self::Frame(to, frame) => mesh.offer(to, frame),
        }
    }
}
