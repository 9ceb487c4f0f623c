//! The reports of steps and evaluations.

use crate::execute::MicrobatchLoss;
use crate::payload::{Boundary, BoundaryError, Payload};
use crate::stage::{ActivationBytes, Microbatches};
use crate::train::batch_gradients::{BatchGradients, GradientError};
use crate::train::non_finite::NonFinite;
use burn_pipeline_plan::simulate::{IdlePeriod, idle_periods};
use burn_pipeline_plan::trace::{Event, Track};

/// The report of [`Pipeline::step`](crate::train::Pipeline::step).
#[derive(Debug, Clone, Default)]
pub struct StepReport {
    /// The loss over all batches since the last step, by the loss contract.
    pub loss: f64,
    /// The norm of all gradients before clipping, if they are clipped.
    pub gradient_norm: Option<f64>,
    /// The non-finite loss or gradient because of which this step was skipped, with
    /// [`OnNonFinite::Skip`](crate::train::OnNonFinite::Skip), or a gradient that overflowed at this loss scale. For a
    /// batch that was only accumulated, the loss because of which the next step will be skipped.
    pub skipped: Option<NonFinite>,
    /// The number of steps skipped since the pipeline was built, including this one.
    pub skipped_steps: u64,
    /// The factor of the loss in this batch's backwards, if there is one ([`Precision`](crate::stage::Precision)).
    pub loss_scale: Option<f64>,
    /// The losses of this batch's microbatches, in order, with their rank, route, and weight in the batch's loss.
    pub losses: Vec<MicrobatchLoss>,
    /// The numbers that the loss function reported for this batch, by microbatch; see
    /// [`Loss::observing`](crate::stage::Loss::observing).
    pub observed: Vec<Vec<f64>>,
    /// One per microbatch, by its index; empty unless requested.
    pub(crate) outputs: Vec<(usize, Payload)>,
    /// The gradients of the batch; `None` if they are not computed.
    pub(super) of_batch: Option<BatchGradients>,
    /// The number of microbatches that were run. A batch with fewer samples than microbatches gets one per sample.
    pub microbatches: usize,
    /// The number of samples in the batch.
    pub samples: usize,
    /// Seconds from call to return.
    pub seconds: f64,
    /// The most microbatches that each rank held at once, summed over its stages.
    pub peak_held: Vec<usize>,
    /// The most bytes that each rank held for backwards at once, excluding parameters; `None` if a stage's engine does
    /// not know. Captured ones do; Burn's autodiff hides what its graph keeps, so for eager ones
    /// [`Builder::measure_memory`](crate::Builder::measure_memory) reads a meter.
    pub peak_held_bytes: Vec<Option<usize>>,
    /// The activation bytes of each stage's largest microbatch, in model order, if its engine knows.
    pub activations: Vec<Option<ActivationBytes>>,
    /// Bytes of each stage's parameters, in model order; in half precision, of masters and of copies.
    pub weight_bytes: Vec<usize>,
    /// Bytes that each stage sent to the next one for its largest microbatch, in model order; 0 for the last.
    pub message_bytes: Vec<usize>,
    /// Bytes of the largest value that each stage sent over a skip edge, in model order; 0 if no edge starts there.
    pub skip_bytes: Vec<usize>,
    /// The timeline of every rank.
    pub timeline: Track,
}

impl StepReport {
    /// The last stage's outputs for this batch, all microbatches joined along dimension 0; for a pipeline built with
    /// [`Builder::outputs`](crate::Builder::outputs). They are those of the training forward, before the step.
    ///
    /// # Errors
    /// Same as [`EvalReport::output`]. Also fails if outputs were not requested.
    pub fn output<O: Boundary>(&self) -> Result<O, BoundaryError> {
        joined(&self.outputs, None)
    }

    /// The same, joined as [`EvalReport::output_along`] joins them.
    ///
    /// # Errors
    /// Same as [`EvalReport::output_along`]. Also fails if outputs were not requested.
    pub fn output_along<O: Boundary>(&self, dims: &[usize]) -> Result<O, BoundaryError> {
        joined(&self.outputs, Some(dims))
    }

    /// The same, one per microbatch; see [`EvalReport::outputs`]. Empty if they were not requested.
    ///
    /// # Errors
    /// Same as [`EvalReport::outputs`].
    pub fn outputs<O: Boundary>(&self) -> Result<Vec<O>, BoundaryError> {
        self.outputs.iter().cloned().map(|(_, output)| O::from_payload(output)).collect()
    }

    /// The gradient of [`StepReport::loss`] with respect to the batch's input, for a pipeline built with
    /// [`Builder::input_gradients`](crate::Builder::input_gradients), as the plain loop over the microbatches has it.
    /// `G` is the type of the input's float tensors, in their order, such as `Tensor<3>`; integers are left out. Where
    /// the loss may not depend on it, read an `Option`.
    ///
    /// Pieces are joined in the order of the samples; a tensor that every microbatch has whole
    /// ([`Split::Replicate`](crate::stage::Split)) gets the sum over microbatches. It has the device and the type of
    /// the batch's tensor, or f32 with [`Builder::precision`](crate::Builder::precision). It is neither clipped nor
    /// checked.
    ///
    /// # Errors
    /// Returns [`GradientError`] if there is no such gradient, or `G` is another type.
    pub fn input_gradient<G: Boundary>(&self) -> Result<G, GradientError> {
        self.of_batch.as_ref().ok_or(GradientError::Off)?.read(None)
    }

    /// The same with respect to an extra ([`Batch::extra`](crate::Batch::extra)): the sum over the stages that read it,
    /// the last one first, which is the plain loop's bit for bit if none but the last uses it more than once.
    ///
    /// # Errors
    /// Same as [`StepReport::input_gradient`].
    pub fn extra_gradient<G: Boundary>(&self, name: &str) -> Result<G, GradientError> {
        self.of_batch.as_ref().ok_or(GradientError::Off)?.read(Some(name))
    }

    /// Samples per second, from call to return.
    pub fn samples_per_second(&self) -> f64 {
        self.samples as f64 / self.seconds
    }

    /// The share of time in which a rank does not compute, on average over ranks: the measured
    /// [`Simulation::bubble_rate_makespan`](crate::simulate::Simulation::bubble_rate_makespan).
    pub fn bubble_rate(&self) -> f64 {
        let computes = |event: &&Event| event.action.tasks().any(|task| task.op().is_compute());
        let busy: f64 = self.timeline.events.iter().filter(computes).map(|event| event.end - event.start).sum();
        1.0 - busy / (self.timeline.rows() as f64 * self.timeline.end())
    }

    /// When and why each rank was idle, in order of time: for inputs, for gradients, for transfers, ..
    pub fn idle(&self) -> Vec<Vec<IdlePeriod>> {
        idle_periods(&self.timeline)
    }

    /// Seconds in which each rank computed nothing because of a transfer or an exchange between replicas
    /// ([`Track::exposed_times`]).
    pub fn exposed_seconds(&self) -> Vec<f64> {
        let mut seconds = vec![0.0; self.timeline.rows()];
        self.timeline.exposed_times().iter().for_each(|wait| seconds[wait.event.rank] += wait.exposed);
        seconds
    }
}

/// The evaluation results that a process wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EvalResults {
    /// The outputs, and the loss.
    #[default]
    All,
    /// The loss, without outputs.
    Loss,
    /// Nothing: it only takes part.
    Nothing,
}

/// The report of [`Pipeline::eval`](crate::train::Pipeline::eval).
#[derive(Debug, Clone)]
pub struct EvalReport {
    /// The loss, if the batch had a target and this process wants it.
    pub loss: Option<f64>,
    /// The losses of the microbatches, in order, if there is a `loss`.
    pub losses: Vec<MicrobatchLoss>,
    /// The numbers that the loss function reported, by microbatch.
    pub observed: Vec<Vec<f64>>,
    /// The number of microbatches that were run.
    pub microbatches: usize,
    /// The number of samples in the batch.
    pub samples: usize,
    /// One per microbatch, by its index, in order; empty if this process wants none.
    pub(crate) outputs: Vec<(usize, Payload)>,
}

impl EvalReport {
    /// The last stage's outputs, all microbatches joined along dimension 0.
    ///
    /// # Errors
    /// Returns [`BoundaryError`] if the last stage's output is not an `O`, or microbatches' tensors differ in more than
    /// their number of samples (see [`EvalReport::outputs`]).
    pub fn output<O: Boundary>(&self) -> Result<O, BoundaryError> {
        joined(&self.outputs, None)
    }

    /// The last stage's outputs of all microbatches, with each tensor joined along its own dimension, in the order in
    /// which `O` holds them: for samples in another dimension than the first.
    ///
    /// ```
    /// # use burn::tensor::Tensor;
    /// # use burn_pipeline::{payload::BoundaryError, train::EvalReport};
    /// /// Scores `[samples, classes]`, and attention `[heads, samples, positions]`.
    /// fn whole(report: &EvalReport) -> Result<(Tensor<2>, Tensor<3>), BoundaryError> {
    ///     report.output_along(&[0, 1])
    /// }
    /// ```
    ///
    /// # Errors
    /// Same as [`EvalReport::output`]. Also fails if a tensor does not have its dimension, or if `dims` does not have
    /// one per tensor.
    pub fn output_along<O: Boundary>(&self, dims: &[usize]) -> Result<O, BoundaryError> {
        joined(&self.outputs, Some(dims))
    }

    /// The last stage's outputs, one per microbatch, in order: to join them in another way, or reduce them. Shapes may
    /// differ if the batch was given in microbatches.
    ///
    /// ```
    /// # use burn::tensor::Tensor;
    /// # use burn_pipeline::{payload::BoundaryError, train::EvalReport};
    /// /// Scores of all samples, and how often each expert was used by them.
    /// fn reduced(report: &EvalReport) -> Result<(Tensor<2>, Tensor<1>), BoundaryError> {
    ///     let (scores, uses): (Vec<Tensor<2>>, Vec<Tensor<1>>) = report.outputs()?.into_iter().unzip();
    ///     let uses = uses.into_iter().reduce(|all, more| all + more);
    ///     Ok((Tensor::cat(scores, 0), uses.ok_or(BoundaryError::Missing { expected: "an output" })?))
    /// }
    /// ```
    ///
    /// # Errors
    /// Returns [`BoundaryError`] if the last stage's output is not an `O`.
    pub fn outputs<O: Boundary>(&self) -> Result<Vec<O>, BoundaryError> {
        self.outputs.iter().cloned().map(|(_, output)| O::from_payload(output)).collect()
    }
}

/// The outputs of all microbatches joined, each tensor along its dimension, by default 0.
fn joined<O: Boundary>(outputs: &[(usize, Payload)], dims: Option<&[usize]>) -> Result<O, BoundaryError> {
    let unlike = |_| BoundaryError::Structure { expected: "outputs that can be joined (read them with `outputs`)" };
    let outputs = outputs.iter().map(|(_, output)| output.clone()).collect();
    O::from_payload(Microbatches::join(outputs, dims).map_err(unlike)?)
}
