//! A schedule chosen by what the first steps cost.
//!
//! Guarantees: the numbers are those of a pipeline that never switched (bit for bit with ordered accumulation); what
//! goes wrong with planning or switching leaves the running pipeline as it is, with the reason in [`Decision`]; what stays
//! is no slower, as measured, than what ran first.
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
//! 5. Then the new schedule's passes are measured as those of the first one were. Where they take longer (costs change with
//!    what runs beside them, above all on shared cores), the first one is taken up again, the same way. All ranks compare
//!    the same numbers: the longest that any of them measured.

use crate::cost::{Layers, Profile};
use crate::link::Link;
use crate::pass::insert_transfers;
use crate::plan::{CheckedPlan, PlacementKind, Plan};
use crate::planner::{Cut, PassChoice, PlannerReport, Recompute, Request, Strategy, Workload, best_plan};
use crate::schedule::{Schedule, ScheduleError, Size, by_name};
use crate::simulate::simulate;
use crate::stage::Batch;
use crate::train::build::builder::Builder;
use crate::train::build_error::BuildError;
use crate::train::checkpoint::Checkpoints;
use crate::train::choose::decision::{AutoError, Decision, Trial};
use crate::train::choose::profile::{measured_profile, median};
use crate::train::error::PipelineError;
use crate::train::pipeline::{Pipeline, SourceBox};
use crate::train::plans::source::Source;
use crate::train::report::StepReport;
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
    /// Steps that are measured after a switch, behind as many to warm up as at the start. With 0 what was chosen stays.
    pub trial: usize,
    /// Bytes that a rank may hold.
    pub cap: Option<f64>,
    /// Bytes held for each byte of parameters: 2 with gradients, 4 with Adam's moments.
    pub state_factor: f64,
}

impl Default for AutoOptions {
    fn default() -> Self {
        Self { warm_up: 2, measured: 5, gain: 0.02, trial: 5, cap: None, state_factor: 4.0 }
    }
}

/// A pipeline that chooses its schedule after some steps; see the module's header.
#[derive(Debug)]
pub struct AutoPipeline {
    builder: Builder,
    size: Size,
    options: AutoOptions,
    pipeline: Pipeline,
    /// Costs to plan by instead of measured ones.
    known: Option<Profile>,
    reports: Vec<StepReport>,
    /// What ran before, while what runs now is on trial.
    before: Option<Arc<SourceBox>>,
    switches: usize,
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
        Ok(Self::with(builder, size, options, pipeline, Decision::Measuring))
    }

    /// As [`AutoPipeline::new`], with this process as one rank that reaches the others through `link`: all processes make
    /// the same calls ([`Builder::build_rank`]), and take the same decision. Stages stay where they are.
    ///
    /// # Errors
    /// As [`Builder::build_rank`].
    pub fn over(builder: Builder, size: Size, options: AutoOptions, link: Box<dyn Link>) -> Result<Self, BuildError> {
        let pipeline = builder.clone().schedule(first_schedule(size)?, size).build_rank(link)?;
        Ok(Self::with(builder, size, options, pipeline, Decision::Measuring))
    }

    fn with(builder: Builder, size: Size, options: AutoOptions, pipeline: Pipeline, decision: Decision) -> Self {
        let (known, reports, before) = (None, Vec::new(), None);
        Self { builder, size, options, pipeline, known, reports, before, switches: 0, decision }
    }

    /// The same, planning by these costs (of an earlier run, say) instead of measured ones. Ranks in processes agree on the
    /// median of theirs. Passes are measured all the same, so a choice that the costs mislead to is taken back.
    pub fn known(self, profile: Profile) -> Self {
        Self { known: Some(profile), ..self }
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
        Self::with(builder, Size::new(1, 1), AutoOptions::default(), pipeline, Decision::Given)
    }

    /// The pipeline that runs now.
    pub fn pipeline(&mut self) -> &mut Pipeline {
        &mut self.pipeline
    }

    /// What was decided, and why.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// How often another plan was taken up so far: 0, 1, or 2 where the first one runs again.
    pub fn switches(&self) -> usize {
        self.switches
    }

    /// The lowered plan that runs now.
    ///
    /// # Errors
    /// As [`Pipeline::plan`].
    pub fn running(&mut self) -> Result<Arc<CheckedPlan>, BuildError> {
        self.pipeline.plan(self.pipeline.source.0.microbatches())
    }

    /// Trains on one batch; chooses the schedule after the last measured one, and later keeps it or takes it back.
    ///
    /// # Errors
    /// As [`Pipeline::step`]. Failures of planning and switching are no errors: see [`AutoPipeline::decision`].
    pub fn step(&mut self, batch: Batch, learning_rate: f64) -> Result<StepReport, PipelineError> {
        let report = self.pipeline.step(batch, learning_rate)?;
        // A smaller batch (an epoch's last, say) tells nothing of the others.
        if report.microbatches == self.pipeline.wanted_microbatches() {
            self.watch(&report);
        }
        Ok(report)
    }

    /// Takes note of a step, and decides when enough of them were measured.
    fn watch(&mut self, report: &StepReport) {
        let (measuring, on_trial) = (matches!(self.decision, Decision::Measuring), self.before.is_some());
        if !measuring && !on_trial {
            return;
        }
        self.reports.push(report.clone());
        let wanted = if on_trial { self.options.trial } else { self.options.measured };
        if self.reports.len() < self.options.warm_up + wanted.max(1) {
            return;
        }
        let measured = self.reports.split_off(self.options.warm_up);
        self.reports.clear();
        let decided = if on_trial { self.judge(&measured) } else { self.decide(&measured) };
        match decided {
            Ok(decision) => self.decision = decision,
            Err(error) => {
                tracing::warn!(%error, "the schedule stays as it is");
                self.decision = Decision::Failed(error);
            }
        }
    }

    fn decide(&mut self, measured: &[StepReport]) -> Result<Decision, AutoError> {
        let pass = self.pipeline.agree_on_longest(pass_seconds(measured))?;
        let own = match &self.known {
            Some(profile) => profile.clone(),
            None => {
                measured_profile(self.pipeline.placement(), measured)?.with_links(self.pipeline.measure_links()?)?
            }
        };
        let own = own.with_skips(self.pipeline.source.0.skips())?;
        let profile = self.pipeline.agree_on_profile(&own)?;
        let planned = Box::new(best_plan(&self.request(&profile)?)?);
        let running = self.running()?;
        let seconds = simulate(running.plan(), &profile, &self.pipeline.travel)?.makespan;
        let best = planned.best.candidate.seconds;
        tracing::info!(running = seconds, best, choice = %planned.best.candidate.choice, "schedules compared");
        let before = running.plan().name().to_owned();
        if best >= seconds * (1.0 - self.options.gain) {
            return Ok(Decision::Kept { planned, running: before, seconds });
        }
        let first = self.pipeline.source.clone();
        self.switch(self.source(&planned))?;
        self.before = (self.options.trial > 0).then_some(first);
        Ok(Decision::Switched { planned, before, seconds, trial: Trial { before: pass, after: None } })
    }

    /// Keeps what is on trial, or goes back to what ran before.
    fn judge(&mut self, measured: &[StepReport]) -> Result<Decision, AutoError> {
        let first = self.before.take();
        let after = self.pipeline.agree_on_longest(pass_seconds(measured))?;
        let decision = std::mem::replace(&mut self.decision, Decision::Measuring);
        let (Decision::Switched { planned, before, seconds, trial }, Some(first)) = (decision, first) else {
            return Ok(Decision::Given);
        };
        let trial = Trial { after: Some(after), ..trial };
        tracing::info!(before = trial.before, after, "passes compared");
        if after <= trial.before {
            return Ok(Decision::Switched { planned, before, seconds, trial });
        }
        self.switch(first.0.clone())?;
        Ok(Decision::WentBack { planned, running: before, seconds, trial })
    }

    /// The question: the same stages on the same ranks.
    fn request(&self, profile: &Profile) -> Result<Request, AutoError> {
        let workload = Workload::new(self.size.microbatches, Layers::of_profile(profile)?);
        let request = Request::new(vec![workload], self.size.ranks, profile.links().clone());
        Ok(Request {
            cap: self.options.cap,
            state_factor: self.options.state_factor,
            chunks: vec![self.size.chunks],
            placements: self.placements(),
            cuts: vec![Cut::Even],
            recompute: vec![Recompute::Never],
            passes: PassChoice::ALL.to_vec(),
            unpipelined: false,
            simulate: self.pipeline.travel,
            ..request
        })
    }

    /// Kinds of placement that stages may move to; none for all.
    fn placements(&self) -> Option<Vec<PlacementKind>> {
        self.pipeline.together.then(|| vec![self.pipeline.placement().kind()])
    }

    /// Lets something else run. Where its stages live elsewhere, its pipeline is built and takes over; the old one ends
    /// only then.
    fn switch(&mut self, source: Source) -> Result<(), AutoError> {
        if self.pipeline.together {
            self.pipeline.adopt(source)?;
        } else {
            let folder = Folder::new();
            let checkpoints = Checkpoints::new(&folder.0);
            self.pipeline.save(&checkpoints, &())?;
            let mut next = Builder { source: Some(Ok(source)), ..self.builder.clone() }.build()?;
            next.load(&checkpoints.latest()?)?;
            self.pipeline = next;
        }
        self.switches += 1;
        Ok(())
    }

    /// The best's family, if it is the catalogue's as it stands, so that batches of other sizes can be run too; else the
    /// plan that was made for these costs.
    fn source(&self, planned: &PlannerReport) -> Source {
        let best = &planned.best;
        let same = |family: &dyn Schedule| {
            let skips = best.plan.plan().skips().to_vec();
            let built = family.build(self.size).ok().and_then(|plan| plan.with_skips(skips).ok());
            let built = built.and_then(|plan| insert_transfers(&plan).ok());
            built.is_some_and(|built| built.rows() == best.plan.plan().rows())
        };
        let family = match &best.candidate.choice.strategy {
            Strategy::Family(name) => by_name(name).ok().filter(|family| same(family.as_ref())),
            _ => None,
        };
        match family {
            Some(family) => Source::Schedule(Arc::from(family), self.size),
            None => Source::Plan(Arc::new(best.plan.plan().clone())),
        }
    }
}

/// Seconds of a pass, from its first action to its last: the median of some.
fn pass_seconds(steps: &[StepReport]) -> f64 {
    median(&mut steps.iter().map(|step| step.timeline.end()).collect::<Vec<_>>())
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
