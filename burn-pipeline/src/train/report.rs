//! What a step or an evaluation reports to its caller.

use crate::execute::MicrobatchLoss;
use crate::plan::StageId;
use crate::simulate::{IdlePeriod, idle_periods};
use crate::stage::{ActivationBytes, Boundary, BoundaryError, Microbatches, Payload};
use crate::trace::{Event, Track};
use crate::train::non_finite::NonFinite;
use crate::train::step::BatchOutcome;
use std::collections::BTreeMap;

/// What [`Pipeline::step`](crate::train::Pipeline::step) tells.
#[derive(Debug, Clone)]
pub struct StepReport {
    /// The loss over all batches since the weights were last stepped, by the loss contract.
    pub loss: f64,
    /// The norm of all gradients before clipping, if they are clipped.
    pub gradient_norm: Option<f64>,
    /// The loss or gradient for which this step left the weights alone, with
    /// [`OnNonFinite::Skip`](crate::train::OnNonFinite::Skip); of a batch that was only accumulated, the loss for which the
    /// next step will.
    pub skipped: Option<NonFinite>,
    /// Steps that were skipped since the pipeline was built, this one included.
    pub skipped_steps: u64,
    /// The losses of this batch's microbatches, in order: on which rank and route, and with which weight in the batch's.
    pub losses: Vec<MicrobatchLoss>,
    /// The numbers that the loss function wants observed in this batch, by microbatch; see
    /// [`Loss::observing`](crate::stage::Loss::observing).
    pub observed: Vec<Vec<f64>>,
    /// One a microbatch, by its index; none unless asked for.
    pub(crate) outputs: Vec<(usize, Payload)>,
    /// Microbatches run; a batch with fewer samples than microbatches gets one for each sample.
    pub microbatches: usize,
    /// Samples in the batch.
    pub samples: usize,
    /// Seconds from call to return.
    pub seconds: f64,
    /// The most microbatches that each rank held at once, summed over its stages.
    pub peak_held: Vec<usize>,
    /// The most bytes that each rank held for backwards at once, parameters not counted; `None` where a stage's engine
    /// cannot tell (captured ones can).
    pub peak_held_bytes: Vec<Option<usize>>,
    /// What each stage's largest microbatch leaves behind for its backward, in model order, where its engine can tell.
    pub activations: Vec<Option<ActivationBytes>>,
    /// Bytes of each stage's parameters, in model order.
    pub weight_bytes: Vec<usize>,
    /// Bytes that each stage sent on for the largest microbatch, in model order; 0 for the last.
    pub message_bytes: Vec<usize>,
    /// Bytes of the largest value that each stage sent past the next one, in model order; 0 where no edge starts.
    pub skip_bytes: Vec<usize>,
    /// What every rank did when.
    pub timeline: Track,
}

impl StepReport {
    /// The last stage's outputs for this batch, of all microbatches joined along dimension 0; for a pipeline that was built with
    /// [`Builder::outputs`](crate::Builder::outputs). They are those of the training forward, from before the step.
    ///
    /// # Errors
    /// As [`EvalReport::output`]; and if outputs were not asked for.
    pub fn output<O: Boundary>(&self) -> Result<O, BoundaryError> {
        joined(&self.outputs, None)
    }

    /// The same, with each tensor joined along its own dimension, in the order in which `O` holds them: where samples are not the
    /// first one.
    ///
    /// # Errors
    /// As [`StepReport::output`], and if a tensor does not have its dimension, or they are not one a tensor.
    pub fn output_along<O: Boundary>(&self, dims: &[usize]) -> Result<O, BoundaryError> {
        joined(&self.outputs, Some(dims))
    }

    /// The last stage's outputs for this batch, one for each microbatch, in order, for a reduction of your own; see
    /// [`EvalReport::outputs`]. None if they were not asked for.
    ///
    /// # Errors
    /// If the last stage does not put out an `O`.
    pub fn outputs<O: Boundary>(&self) -> Result<Vec<O>, BoundaryError> {
        self.outputs.iter().cloned().map(|(_, output)| O::from_payload(output)).collect()
    }

    /// Samples a second, from call to return.
    pub fn samples_per_second(&self) -> f64 {
        self.samples as f64 / self.seconds
    }

    /// The share of the rows' time in which a rank does not compute, on average: the measured
    /// [`Simulation::bubble_rate_makespan`](crate::simulate::Simulation::bubble_rate_makespan).
    pub fn bubble_rate(&self) -> f64 {
        let computes = |event: &&Event| event.action.tasks().any(|task| task.op().is_compute());
        let busy: f64 = self.timeline.events.iter().filter(computes).map(|event| event.end - event.start).sum();
        1.0 - busy / (self.timeline.rows() as f64 * self.timeline.end())
    }

    /// When and why each rank idled, in order of time: for inputs, for gradients, for transfers, ..
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

    /// Adds what one rank reports; ranks come in order.
    pub(super) fn add(&mut self, outcome: BatchOutcome) {
        (self.loss, self.skipped, self.losses) = (outcome.loss, outcome.non_finite, outcome.losses);
        self.observed = outcome.observed;
        self.outputs.extend(outcome.outputs);
        self.peak_held.push(outcome.peak_held);
        self.peak_held_bytes.push(outcome.peak_held_bytes);
        for (stage, bytes) in outcome.activations {
            let largest = &mut self.activations[stage.index()];
            *largest = Some(bytes).max(*largest);
        }
        self.timeline.events.extend(outcome.events);
        raise(&mut self.message_bytes, outcome.message_bytes);
        raise(&mut self.skip_bytes, outcome.skip_bytes);
    }
}

/// Keeps the larger number of each stage.
fn raise(largest: &mut [usize], bytes: BTreeMap<StageId, usize>) {
    bytes.into_iter().for_each(|(stage, bytes)| largest[stage.index()] = bytes.max(largest[stage.index()]));
}

/// The results of an evaluation that a process wants.
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

/// What [`Pipeline::eval`](crate::train::Pipeline::eval) tells.
#[derive(Debug, Clone)]
pub struct EvalReport {
    /// The loss, if the batch had a target and this process wants it.
    pub loss: Option<f64>,
    /// The losses of the microbatches, in order, where `loss` is one.
    pub losses: Vec<MicrobatchLoss>,
    /// The numbers that the loss function wants observed, by microbatch.
    pub observed: Vec<Vec<f64>>,
    /// Microbatches run.
    pub microbatches: usize,
    /// Samples in the batch.
    pub samples: usize,
    /// One a microbatch, by its index, in order; none where this process wants none.
    pub(crate) outputs: Vec<(usize, Payload)>,
}

impl EvalReport {
    /// The last stage's outputs, of all microbatches joined along dimension 0.
    ///
    /// # Errors
    /// If the last stage does not put out an `O`, or microbatches put out tensors that differ in more than their
    /// number of samples (see [`EvalReport::outputs`]).
    pub fn output<O: Boundary>(&self) -> Result<O, BoundaryError> {
        joined(&self.outputs, None)
    }

    /// The last stage's outputs, of all microbatches, with each tensor joined along its own dimension, in the order in which `O`
    /// holds them: where samples are not the first one.
    ///
    /// ```
    /// # use burn::tensor::Tensor;
    /// # use burn_pipeline::{stage::BoundaryError, train::EvalReport};
    /// /// Scores `[samples, classes]`, and attention `[heads, samples, positions]`.
    /// fn whole(report: &EvalReport) -> Result<(Tensor<2>, Tensor<3>), BoundaryError> {
    ///     report.output_along(&[0, 1])
    /// }
    /// ```
    ///
    /// # Errors
    /// As [`EvalReport::output`], and if a tensor does not have its dimension, or they are not one a tensor.
    pub fn output_along<O: Boundary>(&self, dims: &[usize]) -> Result<O, BoundaryError> {
        joined(&self.outputs, Some(dims))
    }

    /// The last stage's outputs, one for each microbatch, in order: to be joined in another way, or reduced. Shapes may differ
    /// where the batch came cut.
    ///
    /// ```
    /// # use burn::tensor::Tensor;
    /// # use burn_pipeline::{stage::BoundaryError, train::EvalReport};
    /// /// Scores of all samples, and how often each expert was used by them.
    /// fn reduced(report: &EvalReport) -> Result<(Tensor<2>, Tensor<1>), BoundaryError> {
    ///     let (scores, uses): (Vec<Tensor<2>>, Vec<Tensor<1>>) = report.outputs()?.into_iter().unzip();
    ///     let uses = uses.into_iter().reduce(|all, more| all + more);
    ///     Ok((Tensor::cat(scores, 0), uses.ok_or(BoundaryError::Missing { expected: "an output" })?))
    /// }
    /// ```
    ///
    /// # Errors
    /// If the last stage does not put out an `O`.
    pub fn outputs<O: Boundary>(&self) -> Result<Vec<O>, BoundaryError> {
        self.outputs.iter().cloned().map(|(_, output)| O::from_payload(output)).collect()
    }
}

/// The outputs of all microbatches joined, each tensor along its dimension, or along 0.
fn joined<O: Boundary>(outputs: &[(usize, Payload)], dims: Option<&[usize]>) -> Result<O, BoundaryError> {
    let unlike = |_| BoundaryError::Structure { expected: "outputs that can be joined (read them with `outputs`)" };
    let outputs = outputs.iter().map(|(_, output)| output.clone()).collect();
    O::from_payload(Microbatches::join(outputs, dims).map_err(unlike)?)
}
