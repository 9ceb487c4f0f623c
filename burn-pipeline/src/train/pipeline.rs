//! The type that a user holds: a pipeline of ranks on threads of this process, or of processes.
//!
//! Guarantees: every call returns within the deadline, with a result or an error that names what failed; after
//! a failure of a rank every later call says so at once (nothing is half-run silently); dropping the pipeline
//! never waits for a stuck rank.

use crate::cost::LinkCosts;
use crate::link::{Failure, Watch};
use crate::plan::{CheckedPlan, Placement, StageId, Transport};
use crate::simulate::SimulateOptions;
use crate::stage::{AnyTensor, Batch, EngineReport, Microbatches, Stage as StageModule, Validate, mixed};
use crate::trace::Track;
use crate::train::build::builder::Builder;
use crate::train::build_error::BuildError;
use crate::train::calls::batch::admit;
use crate::train::checkpoint::Progress;
use crate::train::control::command::{Answer, Command, Reply, StageFacts};
use crate::train::control::endings::Endings;
use crate::train::error::PipelineError;
use crate::train::plans::parts::Shares;
use crate::train::plans::source::{Groups, Source};
use crate::train::report::{EvalReport, StepReport, Wants, most};
use crate::train::shared::SharedReport;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

/// A pipeline of ranks on threads of this process ([`Builder::build`]), or of one rank in each of several processes
/// ([`Builder::build_rank`]).
///
/// ```
/// use burn::module::Module;
/// use burn::nn::{Linear, LinearConfig};
/// use burn::optim::SgdConfig;
/// use burn::tensor::{Device, Tensor};
/// use burn_pipeline::schedule::{GPipe, Size};
/// use burn_pipeline::stage::{Batch, StageId, StageBox};
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
    pub(crate) source: Arc<SourceBox>,
    pub(crate) placement: Placement,
    pub(crate) training: HashMap<usize, Arc<CheckedPlan>>,
    pub(crate) evaluation: HashMap<usize, Arc<CheckedPlan>>,
    pub(crate) facts: Vec<StageFacts>,
    pub(crate) shared: Vec<SharedReport>,
    /// The ranks of this process.
    pub(crate) members: Vec<usize>,
    /// Are there ranks in other processes?
    pub(crate) together: bool,
    pub(crate) transport: Transport,
    /// How messages travel, as the simulator has it.
    pub(crate) travel: SimulateOptions,
    pub(crate) watch: Arc<dyn Watch>,
    pub(crate) commands: Vec<Sender<Command>>,
    pub(crate) replies: Receiver<Reply>,
    pub(crate) groups: Groups,
    /// Dropped after the commands, whose end the rank's thread sees.
    #[expect(dead_code, reason = "it is there for its drop")]
    pub(crate) endings: Endings,
    pub(crate) deadline: Duration,
    pub(crate) validate: Validate,
    pub(crate) learned: bool,
    pub(crate) closed: Option<Failure>,
    pub(crate) progress: Progress,
    /// Batches whose gradients no step has used yet.
    pub(crate) waiting: usize,
    pub(crate) seed: Option<u64>,
}

/// `Source` without a need for `Debug` on schedules' insides.
pub(crate) struct SourceBox(pub(crate) Source);

impl std::fmt::Debug for SourceBox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("..")
    }
}

/// A batch that may be run, and the plans that run it.
type Admitted = (Arc<Shares>, Arc<Microbatches>);

impl Pipeline {
    /// Starts to set a pipeline up.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Where stages live.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// The shared parameters as they were found, and how their gradients are summed.
    pub fn shared(&self) -> &[SharedReport] {
        &self.shared
    }

    /// Which way each stage's forward and backward are run, and why, in model order. Whether a stage can be
    /// captured is known once it has run. Where ranks are processes, of this process's stages.
    ///
    /// # Errors
    /// As [`Pipeline::step`].
    pub fn engines(&mut self) -> Result<Vec<(StageId, EngineReport)>, PipelineError> {
        let mut engines = Vec::new();
        for answer in self.ask(&Command::Engines)? {
            if let Answer::Engines(stages) = answer {
                engines.extend(stages);
            }
        }
        engines.sort_by_key(|(stage, _)| *stage);
        engines.dedup_by_key(|(stage, _)| *stage);
        Ok(engines)
    }

    pub(crate) fn plan_name(&self) -> String {
        self.training.values().next().map(|plan| plan.plan().name().to_owned()).unwrap_or_default()
    }

    /// The lowered plan that trains a batch of this many microbatches; with data-parallel replicas, one replica's part.
    ///
    /// # Errors
    /// If the schedule cannot be built for that many.
    pub fn plan(&mut self, microbatches: usize) -> Result<Arc<CheckedPlan>, BuildError> {
        if let Some(plan) = self.training.get(&microbatches) {
            return Ok(plan.clone());
        }
        let plan = Arc::new(self.source.0.training_plan(microbatches, self.transport, self.groups)?);
        if plan.plan().placement() != &self.placement {
            return Err(BuildError::Moved { schedule: plan.plan().name().to_owned(), microbatches });
        }
        self.training.insert(microbatches, plan.clone());
        Ok(plan)
    }

    /// Trains on one batch: forwards, backwards, and one step of the weights.
    ///
    /// # Errors
    /// A batch that does not fit is refused before anything runs; a failing rank closes the pipeline.
    pub fn step(&mut self, batch: Batch, learning_rate: f64) -> Result<StepReport, PipelineError> {
        let began = Instant::now();
        let mut report = self.run_training(batch, true)?;
        for answer in self.ask(&Command::Apply { learning_rate })? {
            if let Answer::Applied(applied) = answer {
                (report.loss, report.gradient_norm) = (applied.loss, applied.gradient_norm);
            }
        }
        self.waiting = 0;
        self.progress.steps += 1;
        report.seconds = began.elapsed().as_secs_f64();
        Ok(report)
    }

    /// Runs forwards and backwards of one batch and leaves the weights: the next [`Pipeline::step`] steps them
    /// with all batches since the last, as if they had been one.
    ///
    /// # Errors
    /// As [`Pipeline::step`]. The report's loss is this batch's own.
    pub fn accumulate(&mut self, batch: Batch) -> Result<StepReport, PipelineError> {
        self.run_training(batch, false)
    }

    /// Forwards and backwards of one batch, the last one before a step or not.
    fn run_training(&mut self, batch: Batch, last: bool) -> Result<StepReport, PipelineError> {
        let began = Instant::now();
        let admitted = self.admit_training(batch);
        let (shares, batch) = self.agreed(admitted)?;
        self.learn_once(&batch)?;
        let seed = self.seed.map(|seed| mixed(seed, self.progress.batches));
        let command = Command::Accumulate { shares, batch: batch.clone(), began, seed, last };
        let mut report = StepReport {
            loss: 0.0,
            gradient_norm: None,
            observed: Vec::new(),
            microbatches: batch.len(),
            samples: batch.samples(),
            seconds: 0.0,
            peak_held: Vec::new(),
            peak_held_bytes: Vec::new(),
            activations: vec![None; self.placement.stages()],
            weight_bytes: self.weight_bytes(),
            message_bytes: vec![0; self.placement.stages()],
            skip_bytes: vec![0; self.placement.stages()],
            timeline: Track { name: "measured".to_owned(), ranks: self.ranks(), events: Vec::new() },
        };
        for answer in self.ask(&command)? {
            if let Answer::Batch(outcome) = answer {
                (report.loss, report.observed) = (outcome.loss, outcome.observed);
                report.peak_held.push(outcome.peak_held);
                report.peak_held_bytes.push(outcome.peak_held_bytes);
                for (stage, bytes) in outcome.activations {
                    let most = &mut report.activations[stage.index()];
                    *most = Some(bytes).max(*most);
                }
                report.timeline.events.extend(outcome.events);
                most(&mut report.message_bytes, outcome.message_bytes);
                most(&mut report.skip_bytes, outcome.skip_bytes);
            }
        }
        self.waiting += 1;
        self.progress.batches += 1;
        self.progress.samples += report.samples as u64;
        report.seconds = began.elapsed().as_secs_f64();
        Ok(report)
    }

    /// What a training batch must be, checked before any rank hears of it.
    fn admit_training(&mut self, batch: Batch) -> Result<Admitted, PipelineError> {
        let batch = Arc::new(self.admitted(batch)?);
        let shares = Shares::new(batch.len(), self.groups.replicas, |count| self.plan(count));
        let shares = shares.map_err(|error| PipelineError::Plan(Box::new(error)))?;
        if !shares.has_backward() {
            return Err(PipelineError::ForwardOnly { schedule: shares.name().to_owned() });
        }
        Ok((Arc::new(shares), batch))
    }

    fn admit_evaluation(&mut self, batch: Batch) -> Result<Admitted, PipelineError> {
        let batch = Arc::new(admit(batch, self.wanted_microbatches(), &self.facts)?);
        let shares = Shares::new(batch.len(), self.groups.replicas, |count| self.evaluation_plan(count));
        let shares = shares.map_err(|error| PipelineError::Plan(Box::new(error)))?;
        Ok((Arc::new(shares), batch))
    }

    fn evaluation_plan(&mut self, microbatches: usize) -> Result<Arc<CheckedPlan>, BuildError> {
        if let Some(plan) = self.evaluation.get(&microbatches) {
            return Ok(plan.clone());
        }
        let plan =
            Arc::new(self.source.0.evaluation_plan(&self.placement, microbatches, self.transport, self.groups)?);
        self.evaluation.insert(microbatches, plan.clone());
        Ok(plan)
    }

    /// Microbatches that a batch is cut into, over all replicas.
    pub(crate) fn wanted_microbatches(&self) -> usize {
        self.source.0.microbatches() * self.groups.replicas
    }

    /// Ranks of all replicas.
    fn ranks(&self) -> usize {
        self.placement.ranks() * self.groups.replicas
    }

    /// Tells the other processes of a refusal, so that they do not run what this one did not admit.
    pub(crate) fn agreed<T>(&mut self, admitted: Result<T, PipelineError>) -> Result<T, PipelineError> {
        if let (true, Err(refusal)) = (self.together, &admitted) {
            // What comes back is this very refusal, or a failure that the next call reports.
            let _ = self.ask(&Command::Refuse(refusal.to_string()));
        }
        admitted
    }

    /// Runs forwards alone over one batch: outputs, and the loss if the batch has a target. Where ranks are processes,
    /// every one gets all of it; see [`Pipeline::eval_for`].
    ///
    /// # Errors
    /// As [`Pipeline::step`].
    pub fn eval(&mut self, batch: Batch) -> Result<EvalReport, PipelineError> {
        self.eval_for(batch, Wants::All)
    }

    /// As [`Pipeline::eval`], for what this process wants of it. Where ranks are processes, all call it with the same
    /// batch, and each says for itself what it wants: outputs travel from the last stage to the ranks that want them,
    /// and to no other.
    ///
    /// # Errors
    /// As [`Pipeline::step`].
    pub fn eval_for(&mut self, batch: Batch, wants: Wants) -> Result<EvalReport, PipelineError> {
        let began = Instant::now();
        let admitted = self.admit_evaluation(batch);
        let (shares, batch) = self.agreed(admitted)?;
        let has_loss = batch.has_target() && self.facts.iter().any(|facts| facts.has_loss) && wants != Wants::Nothing;
        let (mut loss, mut observed, mut outputs) = (0.0, Vec::new(), Vec::new());
        let asks = wants == Wants::All;
        for answer in self.ask(&Command::Evaluate { shares, batch: batch.clone(), began, asks })? {
            if let Answer::Batch(outcome) = answer {
                if wants != Wants::Nothing {
                    (loss, observed) = (outcome.loss, outcome.observed);
                }
                outputs.extend(outcome.outputs.into_iter().filter(|_| asks));
            }
        }
        outputs.sort_by_key(|(sample, _)| *sample);
        let (loss, outputs) = (has_loss.then_some(loss), outputs.into_iter().map(|(_, output)| output).collect());
        Ok(EvalReport { loss, observed, microbatches: batch.len(), samples: batch.samples(), outputs })
    }

    /// Measures the links between ranks that hand tensors to each other: half a round trip of a small and of a large
    /// message, the median of several.
    ///
    /// Where a large message takes no longer than a small one (threads that move handles on one device), the link has
    /// no bandwidth limit.
    ///
    /// # Errors
    /// As [`Pipeline::step`].
    pub fn measure_links(&mut self) -> Result<LinkCosts, PipelineError> {
        let mut between = Vec::new();
        for answer in self.ask(&Command::MeasureLinks)? {
            if let Answer::Links(links) = answer {
                between.extend(links);
            }
        }
        Ok(LinkCosts { between, ..LinkCosts::default() })
    }

    /// The gradients gathered since the last step, scaled by the loss contract and clipped, as the optimizer
    /// would get them: one list a stage, in model order of stages and parameters. Forgets them.
    ///
    /// # Errors
    /// As [`Pipeline::step`].
    pub fn take_gradients(&mut self) -> Result<Vec<Vec<Option<AnyTensor>>>, PipelineError> {
        self.ask(&Command::FinishGradients)?;
        let gradients = self.tensors(&Command::Gradients)?;
        self.ask(&Command::Forget)?;
        self.waiting = 0;
        Ok(gradients)
    }

    /// The weights: one list a stage, in model order of stages and parameters.
    ///
    /// # Errors
    /// As [`Pipeline::step`].
    pub fn weights(&mut self) -> Result<Vec<Vec<AnyTensor>>, PipelineError> {
        let weights = self.tensors(&Command::Weights)?;
        Ok(weights.into_iter().map(|stage| stage.into_iter().flatten().collect()).collect())
    }

    /// A copy of the module of one stage (its tensors are shared until one side changes them). Where ranks are
    /// processes, only the one that holds the stage has it.
    ///
    /// # Errors
    /// If the stage is not an `M`, or a rank does not answer.
    pub fn module<M: StageModule>(&mut self, stage: usize) -> Result<M, PipelineError> {
        for answer in self.ask(&Command::Modules)? {
            let Answer::Modules(modules) = answer else { continue };
            for (at, module) in modules {
                if at.index() == stage
                    && at.replica() == 0
                    && let Ok(module) = module.downcast::<Option<M>>()
                {
                    return (*module).ok_or(PipelineError::NoSuchModule { stage, wanted: std::any::type_name::<M>() });
                }
            }
        }
        Err(PipelineError::NoSuchModule { stage, wanted: std::any::type_name::<M>() })
    }

    fn tensors(&mut self, command: &Command) -> Result<Vec<Vec<Option<AnyTensor>>>, PipelineError> {
        let mut rows = Vec::new();
        for answer in self.ask(command)? {
            if let Answer::Tensors(stages) = answer {
                rows.extend(stages.into_iter().filter(|(stage, _)| stage.replica() == 0));
            }
        }
        rows.sort_by_key(|(stage, _)| *stage);
        rows.dedup_by_key(|(stage, _)| *stage);
        Ok(rows.into_iter().map(|(_, tensors)| tensors).collect())
    }

    /// Bytes of each stage's parameters, in model order.
    fn weight_bytes(&self) -> Vec<usize> {
        self.facts.iter().filter(|facts| facts.stage.replica() == 0).map(|facts| facts.weight_bytes).collect()
    }
}
