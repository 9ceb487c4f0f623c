//! What a user says of a model that Burn's training loop is to run as a pipeline.

use burn_pipeline::stage::{Boundary, BoundaryError, Microbatches};
use burn_pipeline::{Batch, StageBox, StageContext};
use burn_train::{InferenceStep, LearnerModel, TrainStep};

/// A model that Burn's training loop can run as a pipeline: how it is cut, and how items become batches and batches outcomes.
///
/// Training and validation have the same item and the same outcome. `TrainStep::step` and `InferenceStep::step` are not
/// called under a [`PipelineStrategy`](crate::PipelineStrategy); without one, the same model trains on one device.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be run as a pipeline",
    note = "implement `burn_pipeline_learner::PipelineModel` for it; `TrainStep` and `InferenceStep` must have the same `Input` and the same `Output`"
)]
pub trait PipelineModel:
    LearnerModel + InferenceStep<Input = <Self as TrainStep>::Input, Output = <Self as TrainStep>::Output>
{
    /// What the last stage puts out; see [`Stage::Output`](burn_pipeline::Stage::Output).
    type LastOutput: Boundary;

    /// A stage made of clones of this model's layers, so that its parameters have the ids of the model's; the last one with the loss.
    ///
    /// Where ranks have devices of their own, the part goes to its rank's: `part.fork(&at.device)`.
    fn stage(&self, at: &StageContext) -> StageBox;

    /// The batch of an item: its input for the first stage, its target for the loss, and what stages read beside.
    fn batch(item: &<Self as TrainStep>::Input) -> Batch;

    /// The last stage's outputs of all microbatches, in order, as one for the whole item: joined along dimension 0, unless you write it
    /// otherwise, for samples in another dimension, or for what is summed and not joined.
    ///
    /// # Errors
    /// If the outputs cannot be joined.
    fn join(outputs: Vec<Self::LastOutput>) -> Result<Self::LastOutput, BoundaryError> {
        let unlike =
            |_| BoundaryError::Structure { expected: "outputs that can be joined (write `PipelineModel::join`)" };
        let outputs = outputs.into_iter().map(Boundary::into_payload).collect();
        Self::LastOutput::from_payload(Microbatches::join(outputs, None).map_err(unlike)?)
    }

    /// What the metrics get of an item. `output` is the last stage's for the whole item, as [`PipelineModel::join`] gives it.
    fn outcome(item: <Self as TrainStep>::Input, output: Self::LastOutput) -> <Self as TrainStep>::Output;
}
