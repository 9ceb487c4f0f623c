//! A forward or a backward that runs in pieces, so that one of each can be interleaved on a device.

use super::call::{ForwardCall, ForwardOutput, Gradients};

/// A forward or a backward, to be run in pieces.
#[derive(Clone, Debug)]
pub(crate) enum StageWork {
    /// `F`.
    Forward(ForwardCall),
    /// `B` of the microbatch with this index.
    Backward(usize, Gradients),
    /// `I` of the microbatch with this index.
    BackwardInput(usize, Gradients),
}

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
pub(crate) enum WorkStarted {
    /// It runs in this many pieces; each enqueues one operation on the device.
    Pieces(usize),
    /// It cannot run in pieces, and has finished.
    Finished(WorkResult),
}

/// The result of finished work.
#[derive(Clone, Debug)]
pub(crate) enum WorkResult {
    /// Of a forward.
    Forward(ForwardOutput),
    /// Of a backward: the gradients of the input.
    Backward(Gradients),
}
