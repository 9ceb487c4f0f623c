//! A forward or a backward that runs in pieces, so that one of each can be interleaved on a device.

/// The two kinds of work that may run in pieces on a stage at the same time, one of each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    /// A forward.
    Forward,
    /// A backward, `B` or `I`.
    Backward,
}

/// The state of work once it has started.
#[derive(Clone, Debug)]
pub(crate) enum Started<T> {
    /// It runs in this many pieces; each enqueues one operation on the device.
    Pieces(usize),
    /// It cannot run in pieces, and has finished with this result.
    Finished(T),
}

impl<T> Started<T> {
    /// The number of pieces; `None` if it has finished.
    pub(crate) fn pieces(&self) -> Option<usize> {
        match self {
            Started::Pieces(pieces) => Some(*pieces),
            Started::Finished(_) => None,
        }
    }
}
