//! Training: batches, and steps of the weights.

use super::outcomes::gather_measured;
use crate::execute::{ExecuteError, ReplicaShare};
use crate::panics::quietly;
use crate::stage::{Batch, Microbatches};
use crate::train::batch_gradients::BatchGradients;
use crate::train::control::{Call, Command};
use crate::train::error::PipelineError;
use crate::train::non_finite::{NonFinite, OnNonFinite};
use crate::train::pipeline::Pipeline;
use crate::train::plans::Parts;
use crate::train::progress::Scaled;
use crate::train::report::StepReport;
use crate::train::step::{ApplyOutcome, BatchOutcome, Finished, Rank, deliver_of_batch, deliver_outputs};
use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::ParamId;
use burn_pipeline_plan::trace::Track;
use std::sync::Arc;
use std::time::Instant;

impl Pipeline {
    /// Trains on one batch: forwards, backwards, and one step of the weights.
    ///
    /// The learning rate is a number, or Burn's [`ModuleLearningRate`] with a rate for each group of parameters, as
    /// `ModuleLrScheduler` returns it. Groups match the parameters' names in the whole model ([`StageBox::named`]).
    ///
    /// # Errors
    /// A batch that does not fit, a learning rate that is not finite ([`PipelineError::LearningRate`]) or holds no rate
    /// ([`PipelineError::NoLearningRate`]), and any batch if there is no optimizer ([`PipelineError::NoOptimizer`]),
    /// are refused before anything runs. If a rank fails, see [`PipelineError::Undone`] and the variants after it. If a
    /// loss or a gradient is NaN or infinite, see [`OnNonFinite`]. Returns [`PipelineError::TrainsNothing`] if no
    /// parameter has a gradient in the first step, unless the learning rate is 0, which trains nothing on purpose.
    ///
    /// [`StageBox::named`]: crate::stage::StageBox::named
    pub fn step(
        &mut self,
        batch: Batch,
        learning_rate: impl Into<ModuleLearningRate>,
    ) -> Result<StepReport, PipelineError> {
        if self.lacks_optimizer {
            return Err(PipelineError::NoOptimizer);
        }
        let began = Instant::now();
        let step = self.training.progress().steps + 1;
        let apply = Apply { step, learning_rate: learning_rate.into(), names: self.stages.names.clone() };
        self.admit(apply.refuse_rates())?;
        let mut report = self.train(batch, Some(&apply))?;
        let mut trained = true;
        for applied in self.ask(apply)? {
            let ApplyOutcome { loss, scale, gradients: Finished { norm, non_finite, trains } } = applied;
            report.of_batch.iter_mut().for_each(|of_batch| of_batch.scale = scale);
            (report.loss, report.gradient_norm, report.skipped) = (loss, norm, non_finite);
            trained &= trains;
        }
        let overflowed = self.overflows(report.skipped.as_ref());
        if !overflowed {
            self.refuse_non_finite(report.skipped.as_ref())?;
        }
        if !trained {
            self.training.gradients_gone();
            return Err(PipelineError::TrainsNothing { step });
        }
        match &report.skipped {
            Some(number) if overflowed => {
                let factor = self.training.scaled().factor;
                tracing::info!(%number, factor, "a step was skipped, since a gradient overflowed at this loss scale");
                self.training.overflowed();
            }
            Some(number) => {
                tracing::warn!(%number, "a step was skipped");
                self.training.skipped();
            }
            None => self.training.stepped(),
        }
        report.skipped_steps = self.training.skipped_steps();
        report.seconds = began.elapsed().as_secs_f64();
        Ok(report)
    }

    /// Runs forwards and backwards of one batch, without a step. The next [`Pipeline::step`] steps the weights with all
    /// batches since the last step, as if they had been one.
    ///
    /// # Errors
    /// Same as [`Pipeline::step`]. The report's loss is that of this batch.
    pub fn accumulate(&mut self, batch: Batch) -> Result<StepReport, PipelineError> {
        self.train(batch, None)
    }

    /// Runs forwards and backwards of one batch, which is the last one before `then`, if that follows.
    fn train(&mut self, batch: Batch, then: Option<&Apply>) -> Result<StepReport, PipelineError> {
        let began = Instant::now();
        let admitted = self.admit_training(batch);
        let (parts, batch) = self.admit(admitted)?;
        if self.learns_metadata {
            self.learn_metadata(&batch)?;
        }
        let stages = self.placement().stages();
        let mut report = StepReport {
            skipped_steps: self.training.skipped_steps(),
            loss_scale: self.training.progress().loss_scale.map(|scale| scale.factor),
            of_batch: self.stages.input_gradients.then(|| BatchGradients::new(&batch, self.widens)),
            microbatches: batch.len(),
            samples: batch.samples(),
            activations: vec![None; stages],
            weight_bytes: self.stages.weight_bytes(),
            message_bytes: vec![0; stages],
            skip_bytes: vec![0; stages],
            timeline: Track { name: "measured".to_owned(), ranks: self.plans.ranks(), events: Vec::new() },
            ..StepReport::default()
        };
        let (step, seed, values) =
            (self.training.progress().steps + 1, self.training.batch_seed(), self.compared(&batch));
        let scaled = self.training.scaled();
        let (outputs, of_batch) = (self.settings.outputs, self.stages.input_gradients);
        let (last, processes) = (then.is_some(), self.ranks.processes);
        // Only processes compare it.
        let then = then.filter(|_| processes).map_or_else(|| "no step".to_owned(), Apply::described);
        let train = Train { parts, batch, values, seed, scaled, step, last, then, outputs, of_batch };
        self.ask(train)?.into_iter().for_each(|outcome| report.add(outcome));
        report.outputs.sort_by_key(|(microbatch, _)| *microbatch);
        self.training.batch_done(report.samples);
        self.refuse_non_finite(report.skipped.as_ref())?;
        report.seconds = began.elapsed().as_secs_f64();
        Ok(report)
    }

    /// Returns true if this number of a step shows that the loss scale is too large.
    pub(super) fn overflows(&self, number: Option<&NonFinite>) -> bool {
        self.training.scaled().may_overflow && number.is_some_and(|number| !matches!(number, NonFinite::Loss { .. }))
    }

    /// Returns the error for a non-finite number of this step, with [`OnNonFinite::Error`]. The ranks have dropped the
    /// step's gradients.
    pub(super) fn refuse_non_finite(&mut self, number: Option<&NonFinite>) -> Result<(), PipelineError> {
        match number.filter(|_| self.settings.on_non_finite == OnNonFinite::Error) {
            None => Ok(()),
            Some(source) => {
                self.training.gradients_gone();
                Err(PipelineError::NonFinite { step: self.training.progress().steps + 1, source: source.clone() })
            }
        }
    }

    /// The text by which processes compare a batch's values, if they do.
    pub(super) fn compared(&self, batch: &Microbatches) -> String {
        match self.compares_batches.then(|| batch.checksum()) {
            None => String::new(),
            Some(Ok(checksum)) => format!(" with values #{checksum:08x}"),
            Some(Err(message)) => format!(" with values that cannot be read ({message})"),
        }
    }

    fn admit_training(&mut self, batch: Batch) -> Result<(Parts, Microbatches), PipelineError> {
        let batch = self.stages.admit_training(batch, self.plans.microbatches(), self.placement().ranks())?;
        let parts = self.parts(true, batch.len())?;
        if !parts.has_backward() {
            return Err(PipelineError::ForwardOnly { schedule: parts.name().to_owned() });
        }
        Ok((parts, batch))
    }
}

/// Runs forwards and backwards of one batch.
struct Train {
    parts: Parts,
    batch: Microbatches,
    /// The text by which processes compare the batch's values.
    values: String,
    /// The seed of the forwards' random numbers.
    seed: Option<u64>,
    scaled: Scaled,
    /// The step that the batch belongs to, counted from 1.
    step: u64,
    /// True if the weights are stepped before the next batch.
    last: bool,
    /// What follows, as text: processes compare it before anything runs, since a batch is not undone by a refused step.
    then: String,
    /// True if this process wants the last stage's outputs.
    outputs: bool,
    /// True if gradients of the batch are computed.
    of_batch: bool,
}

impl Command for Train {
    type Reply = BatchOutcome;
    const NAME: &'static str = "training";
    const GATHERS: bool = true;
    const RUNS_ON_WEIGHTS: bool = true;

    fn call(&self) -> Call {
        let (name, samples, microbatches) = (self.parts.name(), self.batch.samples(), self.batch.len());
        let (values, then) = (&self.values, &self.then);
        Call::Shared(format!(
            "training {name} over {samples} samples in {microbatches} microbatches{values}, then {then}"
        ))
    }

    fn step(&self) -> Option<u64> {
        Some(self.step)
    }

    fn run(&self, rank: &mut Rank, began: Instant) -> Result<BatchOutcome, ExecuteError> {
        rank.draw_from(self.seed);
        rank.contract.scaled = self.scaled;
        let (share, plan) = self.parts.of(rank.replica());
        let share = ReplicaShare { reduce: self.last, ..share };
        Ok(rank.accumulate(plan, &self.batch, began, self.step, share)?.for_another_thread())
    }

    fn exchange(&self, rank: &mut Rank, mut own: BatchOutcome) -> Result<Vec<BatchOutcome>, ExecuteError> {
        let (outputs, of_batch) = (std::mem::take(&mut own.run.outputs), std::mem::take(&mut own.run.of_batch));
        if rank.settings.outputs {
            own.run.outputs = deliver_outputs(rank, outputs, self.outputs)?;
        }
        if self.of_batch {
            own.run.of_batch = deliver_of_batch(rank, of_batch)?;
        }
        gather_measured(rank, &mut own)?;
        Ok(vec![own])
    }
}

struct Apply {
    step: u64,
    learning_rate: ModuleLearningRate,
    names: Arc<[String]>,
}

impl Apply {
    fn rates(&self) -> Vec<f64> {
        // Groups match parameters by name, because ids differ from rank to rank.
        let rate = |name: &String| self.learning_rate.lr_from_param(ParamId::from(0), Some(name));
        self.names.iter().map(rate).collect()
    }

    /// Refuses a learning rate that lacks a rate, or holds one that is not finite.
    fn refuse_rates(&self) -> Result<(), PipelineError> {
        // Burn panics for what no group of the learning rate matches. A model may have no parameter that shows it.
        let rates = quietly(|| (self.learning_rate.base(), self.rates()));
        let (_, rates) = rates.map_err(|_| PipelineError::NoLearningRate)?;
        rates
            .into_iter()
            .find(|rate| !rate.is_finite())
            .map_or(Ok(()), |rate| Err(PipelineError::LearningRate { rate }))
    }

    /// The step as text, with everything that must be equal on all ranks.
    fn described(&self) -> String {
        let (base, rates) = (self.learning_rate.base(), self.rates());
        let others = match rates.iter().filter(|&&rate| rate != base).count() {
            0 => String::new(),
            count => {
                let bytes: Vec<u8> = rates.iter().flat_map(|rate| rate.to_le_bytes()).collect();
                format!(", and at others for {count} parameters #{:08x}", crc32fast::hash(&bytes))
            }
        };
        format!("a step at learning rate {base}{others}")
    }
}

impl Command for Apply {
    type Reply = ApplyOutcome;
    const NAME: &'static str = "stepping the weights";
    const GATHERS: bool = true;
    const RUNS_ON_WEIGHTS: bool = true;

    fn step(&self) -> Option<u64> {
        Some(self.step)
    }

    fn run(&self, rank: &mut Rank, _: Instant) -> Result<ApplyOutcome, ExecuteError> {
        rank.apply(&self.learning_rate, self.rates().iter().all(|&rate| rate == 0.0))
    }
}
