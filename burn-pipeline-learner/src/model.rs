//! The interface of a model that Burn's training loop runs as a pipeline.
//!
//! Metrics get the joined outputs of the whole batch, and the model computes their loss anew: for most metrics an
//! average over microbatches is another number.

use burn_pipeline::payload::{Boundary, BoundaryError};
use burn_pipeline::stage::Microbatches;
use burn_pipeline::{Batch, StageBox, StageContext};
use burn_train::{InferenceStep, LearnerModel, TrainStep};

/// A model that Burn's training loop can run as a pipeline: how it is cut, how an item becomes a batch, and how outputs
/// become the outcome of an item.
///
/// Training and validation use the same item and outcome types. `TrainStep::step` and `InferenceStep::step` are not
/// called under a [`PipelineStrategy`](crate::PipelineStrategy); without one, the same model trains on one device.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be run as a pipeline",
    note = "implement `burn_pipeline_learner::PipelineModel` for it; `TrainStep` and `InferenceStep` must have the \
            same `Input` and the same `Output`"
)]
pub trait PipelineModel:
    LearnerModel + InferenceStep<Input = <Self as TrainStep>::Input, Output = <Self as TrainStep>::Output>
{
    /// The last stage's output; see [`Stage::Output`](burn_pipeline::Stage::Output).
    type LastOutput: Boundary;

    /// Returns a stage built from clones of this model's layers, so that its parameters have the ids of the model's.
    /// The last stage includes the loss.
    ///
    /// If ranks have their own devices, move the part to its rank's: `part.fork(&at.device)`.
    fn stage(&self, at: &StageContext) -> StageBox;

    /// Returns the batch of an item: the first stage's input, the loss's target, and the stages' other inputs.
    fn batch(item: &<Self as TrainStep>::Input) -> Batch;

    /// Joins the last stage's outputs of all microbatches, in order, into one output for the whole item. The default
    /// joins along dimension 0; override it for samples in another dimension, or for outputs that are summed.
    ///
    /// # Errors
    /// Returns [`BoundaryError`] if the outputs cannot be joined.
    fn join(outputs: Vec<Self::LastOutput>) -> Result<Self::LastOutput, BoundaryError> {
        let unlike =
            |_| BoundaryError::Structure { expected: "outputs that can be joined (implement `PipelineModel::join`)" };
        let outputs = outputs.into_iter().map(Boundary::into_payload).collect();
        Self::LastOutput::from_payload(Microbatches::join(outputs, None).map_err(unlike)?)
    }

    /// Returns what metrics get for an item. `output` is the last stage's output for the whole item, from
    /// [`PipelineModel::join`].
    fn outcome(item: <Self as TrainStep>::Input, output: Self::LastOutput) -> <Self as TrainStep>::Output;
}
