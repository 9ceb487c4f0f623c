//! A forward or a backward that is run in pieces, so that one of each can be interleaved on a device.

use super::call::{ForwardCall, ForwardOutput, Gradients};

/// Work that is done piece by piece, so that a forward and a backward can be interleaved.
#[derive(Clone, Debug)]
pub(crate) enum StageWork {
    /// `F`.
    Forward(ForwardCall),
    /// `B` of a microbatch.
    Backward(usize, Gradients),
    /// `I` of a microbatch.
    BackwardInput(usize, Gradients),
}

/// Which of the two pieces of work that a stage may have begun: one forward and one backward.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    /// A forward.
    Forward,
    /// A backward, `B` or `I`.
    Backward,
}

/// What beginning a piece of work gave.
#[derive(Clone, Debug)]
pub(crate) enum WorkStarted {
    /// It can be done in so many pieces: each enqueues one operation on the device.
    Pieces(usize),
    /// It cannot be done in pieces, and was done.
    Finished(WorkResult),
}

/// What work gave.
#[derive(Clone, Debug)]
pub(crate) enum WorkResult {
    /// Of a forward.
    Forward(ForwardOutput),
    /// Of a backward: the gradients of the input.
    Backward(Gradients),
}
