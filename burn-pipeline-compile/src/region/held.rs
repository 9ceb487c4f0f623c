//! Buffers before they are numbered.

/// What a buffer holds while a region is lowered.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Held {
    Input(usize),
    Output(usize),
    /// A value for each element of a tile, or for each row.
    Slot {
        wide: bool,
    },
}
