//! The memory of a collective that is ready to launch, and what is kept until the launch has completed.

use super::command::Answer;
use super::gpu::Event;
use super::inbox::Slot;
use super::tensors::{Held, Pinned};
use burn_cubecl::tensor::CubeTensor;
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
    /// True if all ranks are known to have launched it.
    pub(super) whole: bool,
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
