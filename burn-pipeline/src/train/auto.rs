//! A schedule chosen by what the first steps cost.
//!
//! Guarantees: the numbers are those of a pipeline that never switched (bit for bit with ordered accumulation); what
//! goes wrong with planning or switching leaves the running pipeline as it is, with the reason in [`Decision`].
//!
//! 1. Training starts with a schedule that splits its backward, so that `F`, `I` and `W` are measured apart. The first
//!    steps warm up; the next ones are measured, and the links after them.
//! 2. The planner prices everything that can run the same stages on the same ranks, in any placement: the catalogue,
//!    passes, and a schedule made for the profile.
//!    Costs are the median of what all ranks measured ([`Pipeline::agree_on_profile`]), so that ranks in processes of
//!    their own come to the same answer. Plans are priced for the link's own transport; what the passes make of one that
//!    is proved for a stricter one is legal there, too.
//! 3. If the best is predicted to be enough faster than what runs, the pipeline is saved into a folder of its own, a
//!    new one is built, takes it over, and goes on at the step boundary. Weights and optimizer state move to where
//!    their stages now live. So stages' parameters must have names of their own; see [`Names`](crate::stage::Names).
//! 4. Ranks in processes of their own keep the placement, so nothing moves: they only take up another plan.

use super::build_error::BuildError;
use super::builder::Builder;
use super::checkpoint::{CheckpointError, Checkpoints};
use super::error::PipelineError;
use super::pipeline::Pipeline;
use super::profile::measured_profile;
use super::report::StepReport;
use super::source::Source;
use crate::cost::{Layers, PartitionError, Profile, ProfileError};
use crate::link::Link;
use crate::pass::insert_transfers;
use crate::plan::Plan;
use crate::planner::{Cut, PassChoice, Planned, PlannerError, Recompute, Request, Way, Workload, best_plan};
use crate::schedule::{Schedule, ScheduleError, Size, by_name};
use crate::simulate::{SimulateError, simulate};
use crate::stage::Batch;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How a schedule is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AutoOptions {
    /// Steps before measuring: captures, compiled kernels, the optimizer's first state.
    pub warm_up: usize,
    /// Steps that are measured.
    pub measured: usize,
    /// The share of a pass that the best must be predicted to save for a switch.
    pub gain: f64,
    /// Bytes that a rank may hold.
    pub cap: Option<f64>,
    /// Bytes held for each byte of parameters: 2 with gradients, 4 with Adam's moments.
    pub state_factor: f64,
}

impl Default for AutoOptions {
    fn default() -> Self {
        Self { warm_up: 2, measured: 5, gain: 0.02, cap: None, state_factor: 4.0 }
    }
}

/// What was decided.
#[derive(Debug)]
pub enum Decision {
    /// Nothing yet: steps are still measured.
    Measuring,
    /// The schedule was given, not to be chosen.
    Given,
    /// What runs is kept: the best is not enough faster.
    Kept {
        /// What the planner found.
        planned: Box<Planned>,
        /// The plan that runs.
        running: String,
        /// Its predicted seconds.
        seconds: f64,
    },
    /// Another schedule runs now.
    Switched {
        /// What the planner found; its best runs.
        planned: Box<Planned>,
        /// The plan that ran before.
        before: String,
        /// Its predicted seconds.
        seconds: f64,
    },
    /// What runs is kept, because something failed on the way.
    Failed(AutoError),
}

/// The decision and its reasons, in words.
impl std::fmt::Display for Decision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (planned, before, seconds, kept) = match self {
            Decision::Measuring => return f.write_str("none yet: steps are still measured"),
            Decision::Given => return f.write_str("the schedule was given"),
            Decision::Failed(error) => return write!(f, "what runs is kept: {error}"),
            Decision::Kept { planned, running, seconds } => (planned, running, seconds, true),
            Decision::Switched { planned, before, seconds } => (planned, before, seconds, false),
        };
        match kept {
            true => writeln!(f, "{before} is kept, predicted {seconds:.6} s a pass: the best is not enough faster")?,
            false => writeln!(f, "{before}, predicted {seconds:.6} s a pass, was left for the best")?,
        }
        planned.fmt(f)
    }
}

/// Why no other schedule could be chosen or taken up.
#[derive(Debug, thiserror::Error)]
pub enum AutoError {
    /// The steps' costs make no profile.
    #[error("the measured steps make no profile: {0}")]
    Profile(#[from] ProfileError),
    /// The profile cannot be planned for.
    #[error("the measured stages cannot be planned for: {0}")]
    Stages(#[from] PartitionError),
    /// The planner found nothing.
    #[error("no plan was found: {0}")]
    Planner(#[from] PlannerError),
    /// What runs cannot be simulated.
    #[error("the running plan cannot be simulated: {0}")]
    Simulate(#[from] SimulateError),
    /// The new pipeline cannot be built.
    #[error("the new pipeline cannot be built: {0}")]
    Build(#[from] BuildError),
    /// Weights cannot be moved.
    #[error("weights cannot be moved to the new pipeline: {0}")]
    Move(#[from] CheckpointError),
    /// A rank failed.
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
}

/// A pipeline that chooses its schedule after some steps; see the module's header.
#[derive(Debug)]
pub struct AutoPipeline {
    builder: Builder,
    size: Size,
    options: AutoOptions,
    pipeline: Pipeline,
    reports: Vec<StepReport>,
    decision: Decision,
}

impl AutoPipeline {
    /// Starts with a zero-bubble schedule of this size. The builder needs no schedule; ranks, stages a rank and
    /// microbatches stay as they are.
    ///
    /// # Errors
    /// As [`Builder::build`].
    pub fn new(builder: Builder, size: Size, options: AutoOptions) -> Result<Self, BuildError> {
        let pipeline = builder.clone().schedule(first_schedule(size)?, size).build()?;
        Ok(Self { builder, size, options, pipeline, reports: Vec::new(), decision: Decision::Measuring })
    }

    /// As [`AutoPipeline::new`], with this process as one rank that reaches the others through `link`: all processes make
    /// the same calls ([`Builder::build_rank`]), and take the same decision. Stages stay where they are.
    ///
    /// # Errors
    /// As [`Builder::build_rank`].
    pub fn over(builder: Builder, size: Size, options: AutoOptions, link: Box<dyn Link>) -> Result<Self, BuildError> {
        let pipeline = builder.clone().schedule(first_schedule(size)?, size).build_rank(link)?;
        Ok(Self { builder, size, options, pipeline, reports: Vec::new(), decision: Decision::Measuring })
    }

    /// The plan that runs while steps are measured, without transfers.
    ///
    /// # Errors
    /// If there is none of that size.
    pub fn first_plan(size: Size) -> Result<Plan, ScheduleError> {
        first_schedule(size)?.build(size)
    }

    /// A pipeline whose schedule was given, for those who hold either.
    pub fn given(builder: Builder, pipeline: Pipeline) -> Self {
        let (size, options) = (Size::new(1, 1), AutoOptions::default());
        Self { builder, size, options, pipeline, reports: Vec::new(), decision: Decision::Given }
    }

    /// The pipeline that runs now.
    pub fn pipeline(&mut self) -> &mut Pipeline {
        &mut self.pipeline
    }

    /// What was decided, and why.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Trains on one batch, and chooses the schedule after the last measured one.
    ///
    /// # Errors
    /// As [`Pipeline::step`]. Failures of planning and switching are no errors: see [`AutoPipeline::decision`].
    pub fn step(&mut self, batch: Batch, learning_rate: f64) -> Result<StepReport, PipelineError> {
        let report = self.pipeline.step(batch, learning_rate)?;
        if matches!(self.decision, Decision::Measuring) {
            self.reports.push(report.clone());
            if self.reports.len() >= self.options.warm_up + self.options.measured.max(1) {
                self.decision = self.decide().unwrap_or_else(|error| {
                    tracing::warn!(%error, "the schedule stays as it is");
                    Decision::Failed(error)
                });
                self.reports.clear();
            }
        }
        Ok(report)
    }

    fn decide(&mut self) -> Result<Decision, AutoError> {
        let measured = &self.reports[self.options.warm_up..];
        let profile = measured_profile(self.pipeline.placement(), measured)?;
        let profile = profile.with_links(self.pipeline.measure_links()?)?;
        let profile = self.pipeline.agree_on_profile(&profile)?;
        let planned = Box::new(best_plan(&self.request(&profile)?)?);
        let running = self.pipeline.plan(self.size.microbatches)?;
        let seconds = simulate(running.plan(), &profile, &self.pipeline.travel)?.makespan;
        let best = planned.best.candidate.seconds;
        tracing::info!(running = seconds, best, choice = %planned.best.candidate.choice, "schedules compared");
        let before = running.plan().name().to_owned();
        if best >= seconds * (1.0 - self.options.gain) {
            return Ok(Decision::Kept { planned, running: before, seconds });
        }
        self.switch(&planned)?;
        Ok(Decision::Switched { planned, before, seconds })
    }

    /// The question: the same stages on the same ranks.
    fn request(&self, profile: &Profile) -> Result<Request, AutoError> {
        let workload = Workload::new(self.size.microbatches, Layers::of_profile(profile)?);
        let request = Request::new(vec![workload], self.size.ranks, profile.links().clone());
        Ok(Request {
            cap: self.options.cap,
            state_factor: self.options.state_factor,
            chunks: vec![self.size.chunks],
            placements: self.pipeline.together.then(|| vec![self.pipeline.placement().kind()]),
            cuts: vec![Cut::Even],
            recompute: vec![Recompute::Never],
            passes: PassChoice::ALL.to_vec(),
            alone: false,
            simulate: self.pipeline.travel,
            ..request
        })
    }

    /// Lets the best run. Where its stages live elsewhere, its pipeline is built and takes over; the old one ends only
    /// then.
    fn switch(&mut self, planned: &Planned) -> Result<(), AutoError> {
        let source = self.source(planned);
        if self.pipeline.together {
            return self.pipeline.adopt(source);
        }
        let folder = Folder::new();
        let checkpoints = Checkpoints::new(&folder.0);
        self.pipeline.save(&checkpoints, &())?;
        let mut next = Builder { source: Some(source), ..self.builder.clone() }.build()?;
        next.load(&checkpoints.latest()?)?;
        self.pipeline = next;
        Ok(())
    }

    /// The best's family, if it is the catalogue's as it stands, so that batches of other sizes can be run too; else the
    /// plan that was made for these costs.
    fn source(&self, planned: &Planned) -> Source {
        let best = &planned.best;
        let same = |family: &dyn Schedule| {
            let built = family.build(self.size).ok().and_then(|plan| insert_transfers(&plan).ok());
            built.is_some_and(|built| built.rows() == best.plan.plan().rows())
        };
        let family = match &best.candidate.choice.way {
            Way::Family(name) => by_name(name).ok().filter(|family| same(family.as_ref())),
            _ => None,
        };
        match family {
            Some(family) => Source::Schedule(Arc::from(family), self.size),
            None => Source::Plan(Arc::new(best.plan.plan().clone())),
        }
    }
}

/// A schedule that splits its backward and runs at any size with so many stages a rank.
fn first_schedule(size: Size) -> Result<Box<dyn Schedule>, ScheduleError> {
    by_name(if size.chunks == 1 { "ZBH1" } else { "InterleavedZeroBubble" })
}

/// A folder of this switch's own, removed when it is over.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static SWITCHES: AtomicU64 = AtomicU64::new(0);
        let switch = SWITCHES.fetch_add(1, Ordering::Relaxed);
        Self(std::env::temp_dir().join(format!("burn-pipeline-switch-{}-{switch}", std::process::id())))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!(folder = %self.0.display(), %error, "a folder is left behind");
        }
    }
}
