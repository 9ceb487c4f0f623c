//! Evaluation: runs forwards only.

use crate::execute::ExecuteError;
use crate::stage::{Batch, Microbatches};
use crate::train::control::{Call, Command};
use crate::train::error::PipelineError;
use crate::train::pipeline::Pipeline;
use crate::train::plans::Parts;
use crate::train::report::{EvalReport, EvalResults};
use crate::train::step::{BatchOutcome, Rank, deliver_outputs};
use std::sync::Arc;
use std::time::Instant;

impl Pipeline {
    /// Evaluates one batch: returns the outputs, and the loss if the batch has a target. When ranks are processes,
    /// every one gets all of it; see [`Pipeline::eval_for`].
    ///
    /// # Errors
    /// Same as [`Pipeline::step`].
    pub fn eval(&mut self, batch: Batch) -> Result<EvalReport, PipelineError> {
        self.eval_for(batch, EvalResults::All)
    }

    /// Like [`Pipeline::eval`], but this process chooses its results. When ranks are processes, all make the call with
    /// the same batch, and each chooses its own results. Outputs are sent only from the last stage to the ranks that
    /// want them.
    ///
    /// # Errors
    /// Same as [`Pipeline::step`].
    pub fn eval_for(&mut self, batch: Batch, results: EvalResults) -> Result<EvalReport, PipelineError> {
        let admitted = self.stages.admit(batch, self.plans.microbatches());
        let admitted = admitted.and_then(|batch| Ok((self.parts(false, batch.len())?, batch)));
        let (parts, batch) = self.admit(admitted)?;
        let values = self.compared(&batch);
        let batch = Arc::new(batch);
        let wants_loss = results != EvalResults::Nothing;
        let has_loss = wants_loss && batch.has_target() && self.stages.has_loss();
        let (mut loss, mut losses, mut observed, mut outputs) = (0.0, Vec::new(), Vec::new(), Vec::new());
        let wants_outputs = results == EvalResults::All;
        for outcome in self.ask(Evaluate { parts, batch: batch.clone(), values, wants_outputs })? {
            if wants_loss {
                (loss, losses, observed) = (outcome.loss, outcome.run.losses, outcome.run.observed);
            }
            outputs.extend(outcome.run.outputs.into_iter().filter(|_| wants_outputs));
        }
        outputs.sort_by_key(|(microbatch, _)| *microbatch);
        Ok(EvalReport {
            loss: has_loss.then_some(loss),
            losses,
            observed,
            microbatches: batch.len(),
            samples: batch.samples(),
            outputs,
        })
    }
}

/// Runs the forwards of one batch, without autodiff.
struct Evaluate {
    parts: Parts,
    batch: Arc<Microbatches>,
    /// The text by which processes compare the batch's values.
    values: String,
    /// True if this process wants the outputs.
    wants_outputs: bool,
}

impl Command for Evaluate {
    type Reply = BatchOutcome;
    const NAME: &'static str = "evaluating";
    const RUNS_ON_WEIGHTS: bool = true;

    fn call(&self) -> Call {
        let (name, samples, microbatches) = (self.parts.name(), self.batch.samples(), self.batch.len());
        let values = &self.values;
        Call::Shared(format!("evaluating {name} over {samples} samples in {microbatches} microbatches{values}"))
    }

    fn run(&self, rank: &mut Rank, began: Instant) -> Result<BatchOutcome, ExecuteError> {
        let (share, plan) = self.parts.of(rank.replica());
        Ok(rank.evaluate(plan, &self.batch, began, share)?.for_another_thread())
    }

    fn exchange(&self, rank: &mut Rank, mut own: BatchOutcome) -> Result<Vec<BatchOutcome>, ExecuteError> {
        own.run.outputs = deliver_outputs(rank, own.run.outputs, self.wants_outputs)?;
        // No rank leaves before its outputs are received.
        rank.executor.gather(&())?;
        Ok(vec![own])
    }
}
