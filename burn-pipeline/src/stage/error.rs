//! What can go wrong within one stage.

use super::boundary::BoundaryError;
use super::boundary::StagePort;
use crate::ops::DeferredError;

/// An error inside one stage; the executor adds rank, stage, microbatch and operation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StageError {
    /// What arrived is not the stage's input.
    #[error(
        "what arrived does not fit the stage's input: {0}; the stage before, or the batch, must hand on what this one takes"
    )]
    Input(#[source] BoundaryError),
    /// The extras are not what the stage reads.
    #[error("the batch's extras do not fit what the stage reads: {0}")]
    Extra(#[source] BoundaryError),
    /// The target is not what the loss takes.
    #[error("the batch's target does not fit what the loss takes: {0}")]
    Target(#[source] BoundaryError),
    /// The last stage of a training step has no loss.
    #[error("the last stage has no loss to start the backward from; build it with `StageBox::with_loss`")]
    NoLoss,
    /// There is a loss, but no target for it.
    #[error("the loss needs a target; give the batch one with `Batch::target`")]
    NoTarget,
    /// The loss is not one number.
    #[error("the loss has shape {shape:?}; it must be one number, of shape [1]")]
    LossShape {
        /// Its shape.
        shape: Vec<usize>,
    },
    /// Gradients arrived that do not match the stage's outputs in number.
    #[error("{got} gradients arrived for {expected} outputs of the stage")]
    GradientCount {
        /// How many came.
        got: usize,
        /// How many outputs there are.
        expected: usize,
    },
    /// The stage's output does not hold one value for each edge that starts at it.
    #[error(
        "the stage's output holds {got} value(s) that go past the next stage, but {expected} edge(s) start here; put out one `Skip` for each `Builder::skip`"
    )]
    SkipCount {
        /// Values put out.
        got: usize,
        /// Edges that start at the stage.
        expected: usize,
    },
    /// What crosses the stage's boundary is not what its metadata says.
    #[error(
        "{} of the stage's {port}: expected {expected}, got {got}; correct what makes it, or declare the size free (`PayloadSpec::free`)",
        tensor.map_or("the form".to_owned(), |tensor| format!("tensor {tensor}"))
    )]
    Metadata {
        /// Where.
        port: StagePort,
        /// Which tensor, from 0; `None` where it is not a tensor that differs.
        tensor: Option<usize>,
        /// What the metadata says.
        expected: String,
        /// What came.
        got: String,
    },
    /// A gradient's shape or element type is not its output's.
    #[error("the gradient of output {output} is {got}, but the output is {expected}")]
    GradientSpec {
        /// Which output, from 0.
        output: usize,
        /// Shape and element type that came.
        got: String,
        /// Shape and element type of the output.
        expected: String,
    },
    /// A backward for a microbatch of which no forward is held.
    #[error("no forward of this microbatch is held; its forward did not run, or its backward ran already")]
    NotHeld,
    /// A deferred operation gave a gradient that does not fit.
    #[error(transparent)]
    Deferred(#[from] Box<DeferredError>),
    /// The optimizer's state cannot be taken out or put back.
    #[error("the optimizer's state: {0}")]
    OptimizerState(String),
    /// The stage cannot be run this way.
    #[error("{0}")]
    Unsupported(String),
    /// The device reported an error.
    #[error("the device reported: {0}")]
    Device(String),
}
