//! The contents of buffers before they are numbered.

/// The contents of a buffer while a region is lowered.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum BufferKind {
    Input(usize),
    Output(usize),
    /// A value for each element of a tile, or for each row.
    Slot {
        wide: bool,
    },
}
