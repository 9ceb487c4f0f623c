//! The type that a user holds: a pipeline of ranks on threads of this process, or of processes.
//!
//! Guarantees: every call returns within the timeout, with a result or an error that names what failed; after a call that failed without having
//! changed a weight the pipeline is as before; after the loss of a rank every later call says so at once; dropping the pipeline never waits for a rank that is stuck, and ends the
//! waits of other processes for this one.
//!
//! What it does stands beside what it takes: `setup` builds it, `calls` trains, evaluates and reads, `checkpoint` saves
//! and loads, `choose` measures.

use crate::cost::Partition;
use crate::plan::{CheckedPlan, Placement};
use crate::simulate::SimulateOptions;
use crate::train::control::{Command, Ranks, Refuse};
use crate::train::error::{BuildError, PipelineError};
use crate::train::non_finite::OnNonFinite;
use crate::train::plans::{Parts, Plans};
use crate::train::progress::{Progress, Training};
use crate::train::shared::SharedReport;
use crate::train::stages::Stages;
use std::fmt::Display;
use std::sync::Arc;

/// A pipeline of ranks on threads of this process ([`Builder::build`](crate::Builder::build)), or of one rank in each of several processes
/// ([`Builder::build_rank`](crate::Builder::build_rank)).
///
/// ```
/// use burn::module::Module;
/// use burn::nn::{Linear, LinearConfig};
/// use burn::optim::SgdConfig;
/// use burn::tensor::{Device, Tensor};
/// use burn_pipeline::schedule::{GPipe, Size};
/// use burn_pipeline::stage::{Batch, Stage, StageBox};
/// use burn_pipeline::train::Pipeline;
///
/// #[derive(Module, Debug)]
/// struct Layer {
///     linear: Linear,
/// }
///
/// impl Stage for Layer {
///     type Input = Tensor<2>;
///     type Extra = ();
///     type Output = Tensor<2>;
///
///     fn forward(&self, x: Tensor<2>, _: ()) -> Tensor<2> {
///         self.linear.forward(x)
///     }
/// }
///
/// let mut pipeline = Pipeline::builder()
///     .schedule(GPipe, Size::new(2, 4))
///     .stages(|at| {
///         let layer = Layer { linear: LinearConfig::new(3, 3).init(&at.device) };
///         match at.is_last() {
///             false => StageBox::new(layer),
///             true => StageBox::with_loss(layer, |y: Tensor<2>, t: Tensor<2>| (y - t).square().mean()),
///         }
///     })
///     .optimizer(|| SgdConfig::new().init())
///     .build()?;
/// let x = Tensor::<2>::ones([8, 3], &Device::flex());
/// let first = pipeline.step(Batch::new(x.clone()).target(x.clone()), 0.1)?;
/// let second = pipeline.step(Batch::new(x.clone()).target(x), 0.1)?;
/// assert!(second.loss < first.loss);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Pipeline {
    pub(super) ranks: Ranks,
    pub(super) plans: Plans,
    pub(super) stages: Stages,
    pub(super) training: Training,
    /// Are the stages' metadata to be learned before the next batch?
    pub(super) learns_metadata: bool,
    /// Are they to be learned at all, again after a module was replaced?
    pub(super) wants_metadata: bool,
    /// How the model's layers are cut, where that was given or planned.
    pub(super) cut: Option<Partition>,
    /// Has every stage the module that the factory makes?
    pub(super) is_as_built: bool,
    /// Has no optimizer been given, and no step said so yet?
    pub(super) lacks_optimizer: bool,
    pub(super) on_non_finite: OnNonFinite,
    /// Do steps report the last stage's outputs to this process?
    pub(super) outputs: bool,
    /// Do processes compare their batches?
    pub(super) compares_batches: bool,
    /// How the simulator prices messages of this pipeline's link.
    pub(super) simulate: SimulateOptions,
}

impl Pipeline {
    /// Where stages live.
    pub fn placement(&self) -> &Placement {
        self.plans.placement()
    }

    /// The shared parameters as they were found, and how their gradients are summed.
    pub fn shared(&self) -> &[SharedReport] {
        self.stages.shared()
    }

    /// The lowered plan that trains a batch of this many microbatches; with data-parallel replicas, one replica's part.
    ///
    /// # Errors
    /// If the schedule cannot be built for that many.
    pub fn plan(&mut self, microbatches: usize) -> Result<Arc<CheckedPlan>, BuildError> {
        self.plans.training(microbatches)
    }

    /// Leaves a job of several processes because of an error outside of the pipeline, of a data loader, say: the calls of all
    /// other processes end at once with an error that has this rank and `reason`. The pipeline is closed.
    ///
    /// A pipeline that is dropped without a word leaves too: the others get an error as soon as they wait for this rank. If a
    /// panic drops it, they learn that.
    pub fn leave(&mut self, reason: impl Display) {
        self.ranks.leave(&format!("it left the job: {reason}"));
    }

    /// Has every rank run a command; returns all replies, in the order of ranks. A failure may drop what was gathered.
    pub(super) fn ask<C: Command>(&mut self, command: C) -> Result<Vec<C::Reply>, PipelineError> {
        let asked = self.ranks.ask(command);
        if asked.as_ref().is_err_and(PipelineError::drops_gradients) {
            self.training.undo();
        }
        asked
    }

    /// Where ranks are processes: tells the others when this one refuses a call, so that they do not run it.
    pub(super) fn admit<T, E: Display>(&mut self, admitted: Result<T, E>) -> Result<T, E> {
        if let (true, Err(refusal)) = (self.ranks.are_processes(), &admitted) {
            // The reply is this very refusal, or a failure of another rank, which is logged; the next call says if it closed the pipeline.
            let _ = self.ask(Refuse(refusal.to_string()));
        }
        admitted
    }

    /// Refuses what does not work where several ranks hold a stage together.
    pub(super) fn whole_stages_only(&self, what: &'static str) -> Result<(), PipelineError> {
        if self.plans.members() > 1 { Err(PipelineError::TensorParallel { what }) } else { Ok(()) }
    }

    /// Refuses what does not work with a vocabulary that is spread.
    pub(super) fn without_vocabulary(&self, what: &'static str) -> Result<(), PipelineError> {
        if self.plans.spread() { Err(PipelineError::Vocabulary { what }) } else { Ok(()) }
    }

    /// Refuses what does not work with weights that are spread over data-parallel replicas.
    pub(super) fn without_spread(&self, what: &'static str) -> Result<(), PipelineError> {
        self.stages.spread().map_or(Ok(()), |stage| Err(PipelineError::Spread { stage, what }))
    }

    /// The parts of a batch of so many microbatches, if replicas that exchange tensors have equally many.
    pub(super) fn met(&self, parts: Result<Parts, BuildError>, microbatches: usize) -> Result<Parts, PipelineError> {
        let parts = parts.map_err(|error| PipelineError::Plan(Box::new(error)))?;
        match self.stages.spread().filter(|_| !parts.are_even()) {
            Some(stage) => Err(PipelineError::UnevenReplicas { stage, microbatches, replicas: parts.replicas() }),
            None => Ok(parts),
        }
    }

    /// How far training has come.
    pub fn progress(&self) -> Progress {
        self.training.progress()
    }
}
