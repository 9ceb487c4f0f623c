//! The type that a user holds: a pipeline with its ranks as threads of this process, or one rank of several processes.
//!
//! Guarantees: every call returns, within a bounded number of timeouts, with a result or an error that names what
//! failed. After a failed call that changed no weight, the pipeline is ready for the next one. After the loss of a
//! rank, every later call fails at once. Dropping the pipeline never waits for a stuck rank, and ends other processes'
//! waits for this one.
//!
//! Its methods are in other modules: `setup` builds it, `calls` trains, evaluates and reads, `checkpoint` saves and
//! loads, `choose` measures.

use crate::train::checkpoint::Branch;
use crate::train::control::{Command, Exchange, Ranks, Refuse};
use crate::train::error::{BuildError, PipelineError};
use crate::train::features::{Feature, NotTogether};
use crate::train::plans::{Parts, Plans};
use crate::train::progress::{Progress, Training};
use crate::train::shared::SharedReport;
use crate::train::stages::Stages;
use crate::train::step::Settings;
use burn_pipeline_plan::cost::Partition;
use burn_pipeline_plan::plan::{CheckedPlan, Placement};
use burn_pipeline_plan::simulate::SimulateOptions;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Display;
use std::sync::Arc;

/// A pipeline with its ranks as threads of this process ([`Builder::build`](crate::Builder::build)), or one rank of
/// several processes ([`Builder::build_rank`](crate::Builder::build_rank)).
///
/// The crate's [first page](crate) has an example, and [`Batch`](crate::Batch) is what its steps take.
#[derive(Debug)]
pub struct Pipeline {
    pub(super) ranks: Ranks,
    pub(super) plans: Plans,
    pub(super) stages: Stages,
    pub(super) training: Training,
    pub(super) settings: Settings,
    /// True if the stages' metadata must be learned before the next batch.
    pub(super) learns_metadata: bool,
    /// The cut of the model's layers, if it was given or planned.
    pub(super) cut: Option<Partition>,
    /// True if every stage has the module that the factory makes.
    pub(super) is_as_built: bool,
    pub(super) lacks_optimizer: bool,
    /// True if half-precision gradients of the batch become f32.
    pub(super) widens: bool,
    pub(super) compares_batches: bool,
    /// The history of its checkpoints.
    pub(super) branch: Branch,
    /// The simulation options that fit this pipeline's link.
    pub(super) simulate: SimulateOptions,
}

impl Pipeline {
    /// The placement of stages on ranks.
    pub fn placement(&self) -> &Placement {
        &self.plans.placement
    }

    /// The tied parameters that were found, and how their gradients are summed.
    pub fn shared(&self) -> &[SharedReport] {
        &self.stages.shared
    }

    /// The lowered plan that trains a batch of this many microbatches; with data-parallel replicas, one replica's part.
    ///
    /// # Errors
    /// Returns [`BuildError`] if the schedule cannot be built for that number.
    pub fn plan(&mut self, microbatches: usize) -> Result<Arc<CheckedPlan>, BuildError> {
        self.plans.checked(true, microbatches)
    }

    /// Leaves a job of several processes because of an error outside of the pipeline, for example of a data loader. The
    /// calls of all other processes end at once with an error that has this rank and `reason`. The pipeline is closed.
    ///
    /// A pipeline that is just dropped leaves too: the others get an error as soon as they wait for this rank. If a
    /// panic drops it, their error says so.
    pub fn leave(&mut self, reason: impl Display) {
        self.ranks.leave(&format!("it left the job: {reason}"));
    }

    /// Gives every process the values of all processes, in rank order, so that they can make the same decision: for
    /// example whether one of them was interrupted, or what rank 0's metrics say. All call it with the same type. When
    /// ranks are threads of this process, it returns only `own`.
    ///
    /// The type must not use serde attributes that leave fields out, because field names are not sent.
    ///
    /// # Errors
    /// Same as [`Pipeline::step`].
    pub fn exchange<T>(&mut self, own: T) -> Result<Vec<T>, PipelineError>
    where
        T: Clone + Serialize + DeserializeOwned + Send + Sync + 'static,
    {
        match self.ranks.processes {
            true => self.ask(Exchange(own)),
            false => Ok(vec![own]),
        }
    }

    /// Runs a command on every rank. Returns all replies, in rank order. A failure may drop accumulated gradients.
    pub(super) fn ask<C: Command>(&mut self, command: C) -> Result<Vec<C::Reply>, PipelineError> {
        let asked = self.ranks.ask(command);
        if asked.as_ref().is_err_and(PipelineError::drops_gradients) {
            self.training.undo();
        }
        asked
    }

    /// When ranks are processes: tells the others if this one refuses a call, so that they do not run it.
    pub(super) fn admit<T, E: Display>(&mut self, admitted: Result<T, E>) -> Result<T, E> {
        if let (true, Err(refusal)) = (self.ranks.processes, &admitted) {
            // The reply is this refusal, or a failure of another rank, which is logged; if it closed the pipeline, the
            // next call says so.
            let _ = self.ask(Refuse(refusal.to_string()));
        }
        admitted
    }

    /// Refuses a feature or a call that does not go with the pipeline's features.
    pub(super) fn goes_with(&self, call: Feature) -> Result<(), NotTogether> {
        call.goes_with(&Feature::chosen([
            (Feature::TensorParallel, self.plans.members() > 1),
            (Feature::CutOverReplicas, self.stages.cut_over_replicas().is_some()),
            (Feature::Vocabulary, self.plans.spread()),
        ]))
    }

    /// The part of each replica when training or evaluating a batch of this many microbatches. Refuses replicas that
    /// exchange tensors, but would have different numbers of microbatches.
    pub(super) fn parts(&mut self, trains: bool, microbatches: usize) -> Result<Parts, PipelineError> {
        let parts = self.plans.parts(trains, microbatches);
        let parts = parts.map_err(|error| PipelineError::Plan(Box::new(error)))?;
        match self.stages.cut_over_replicas().filter(|_| !parts.are_even()) {
            Some(stage) => Err(PipelineError::UnevenReplicas { stage, microbatches, replicas: parts.replicas() }),
            None => Ok(parts),
        }
    }

    /// The progress of the training.
    pub fn progress(&self) -> Progress {
        self.training.progress()
    }
}
