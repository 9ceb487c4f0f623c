//! A schedule chosen by what the first steps cost.
//!
//! Guarantees: the numbers are those of a pipeline that never switched (bit for bit with ordered accumulation); a failure
//! of planning or switching leaves the running pipeline as it is, with the reason in [`Decision`]; the schedule that
//! stays is no slower, as measured, than the first one.
//!
//! 1. Training starts with a schedule that splits its backward, so that `F`, `I` and `W` are measured separately. The
//!    first steps warm up; the next ones are measured, and the links after them.
//! 2. The planner prices everything that can run the same stages on the same ranks, in any placement: the catalogue,
//!    passes, and a schedule synthesised for the profile ([`request`](super::request)). Costs are the median of what all
//!    ranks measured, so that ranks in processes come to the same answer ([`Pipeline::agree_on_profile`]).
//! 3. If the best one is predicted to be enough faster, it runs from the next step on ([`switch`](super::switch)).
//! 4. Then the new schedule's passes are measured in the same way. If they take longer (costs change with what runs
//!    beside them, above all on shared cores), the first schedule runs again. All ranks compare the same numbers: the
//!    longest that any of them measured.

use super::decision::{AutoError, Decision};
use super::options::AutoOptions;
use super::profile::median;
use super::request::{request, source_of};
use super::switch::switch;
use crate::cost::Profile;
use crate::link::Link;
use crate::plan::{CheckedPlan, Plan};
use crate::planner::best_plan;
use crate::schedule::{Schedule, ScheduleError, Size, by_name};
use crate::simulate::simulate;
use crate::stage::Batch;
use crate::train::error::{BuildError, PipelineError};
use crate::train::pipeline::Pipeline;
use crate::train::plans::Source;
use crate::train::report::StepReport;
use crate::train::setup::Builder;
use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use std::sync::Arc;

/// A pipeline that measures its first steps and then chooses its schedule.
///
/// It starts with a zero-bubble schedule. After [`AutoOptions::measured`] steps it plans with the measured costs, switches
/// to the best schedule if that is predicted to be enough faster, and switches back if it turns out slower. Losses and
/// weights are those of a pipeline that never switched.
///
/// Ranks of one process move stages: the pipeline is saved into a temporary folder and loaded into a new one, so
/// parameters need names that are unique in the model; see [`Names`](crate::stage::Names). Ranks in processes keep their
/// stages and run another plan.
#[derive(Debug)]
pub struct AutoPipeline {
    builder: Builder,
    size: Size,
    options: AutoOptions,
    pipeline: Pipeline,
    /// Costs to plan by instead of measured ones.
    profile: Option<Profile>,
    reports: Vec<StepReport>,
    /// What ran first, while what runs now is on trial.
    first: Option<Source>,
    switches: usize,
    decision: Decision,
}

impl AutoPipeline {
    /// Starts with a zero-bubble schedule of this size. The builder needs no schedule. Ranks, stages a rank and microbatches
    /// do not change.
    ///
    /// # Errors
    /// As [`Builder::build`].
    pub fn new(builder: Builder, size: Size, options: AutoOptions) -> Result<Self, BuildError> {
        let pipeline = builder.clone().schedule(first_schedule(size)?, size).build()?;
        Ok(Self::with(builder, size, options, pipeline, Decision::Measuring))
    }

    /// As [`AutoPipeline::new`], with this process as one rank, joined to the others by `link`. All processes make the same
    /// calls ([`Builder::build_rank`]) and come to the same decision. Stages do not move.
    ///
    /// # Errors
    /// As [`Builder::build_rank`].
    pub fn new_rank(
        builder: Builder,
        size: Size,
        options: AutoOptions,
        link: Box<dyn Link>,
    ) -> Result<Self, BuildError> {
        let pipeline = builder.clone().schedule(first_schedule(size)?, size).build_rank(link)?;
        Ok(Self::with(builder, size, options, pipeline, Decision::Measuring))
    }

    fn with(builder: Builder, size: Size, options: AutoOptions, pipeline: Pipeline, decision: Decision) -> Self {
        let (profile, reports, first) = (None, Vec::new(), None);
        Self { builder, size, options, pipeline, profile, reports, first, switches: 0, decision }
    }

    /// Plans by these costs (of an earlier run, say) instead of measured ones. Ranks in processes agree on the median of
    /// theirs. Passes are measured all the same, so a choice that misleading costs led to is taken back.
    pub fn with_profile(self, profile: Profile) -> Self {
        Self { profile: Some(profile), ..self }
    }

    /// The plan that runs while steps are measured, without transfers.
    ///
    /// # Errors
    /// If no plan of that size can be built.
    pub fn first_plan(size: Size) -> Result<Plan, ScheduleError> {
        first_schedule(size)?.build(size)
    }

    /// A pipeline that keeps its schedule, for programs that hold either kind.
    pub fn fixed(pipeline: Pipeline) -> Self {
        let (builder, options) = (Builder::default(), AutoOptions::default());
        Self::with(builder, Size::new(1, 1), options, pipeline, Decision::Fixed)
    }

    /// The pipeline that runs now.
    pub fn pipeline(&mut self) -> &mut Pipeline {
        &mut self.pipeline
    }

    /// What was decided, and why.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// How often the plan was changed so far: 0, 1, or 2 where the first one runs again.
    pub fn switches(&self) -> usize {
        self.switches
    }

    /// The lowered plan that runs now.
    ///
    /// # Errors
    /// As [`Pipeline::plan`].
    pub fn current_plan(&mut self) -> Result<Arc<CheckedPlan>, BuildError> {
        self.pipeline.plans.current()
    }

    /// Trains on one batch. Chooses the schedule after the last measured step, and later keeps it or goes back.
    ///
    /// # Errors
    /// As [`Pipeline::step`]. Failures of planning and switching are no errors: see [`AutoPipeline::decision`].
    pub fn step(
        &mut self,
        batch: Batch,
        learning_rate: impl Into<ModuleLearningRate>,
    ) -> Result<StepReport, PipelineError> {
        let report = self.pipeline.step(batch, learning_rate)?;
        // A smaller batch (an epoch's last, say) has other costs.
        if report.microbatches == self.pipeline.plans.microbatches() {
            self.measure(&report);
        }
        Ok(report)
    }

    /// Keeps a step's measurements, and decides when there are enough of them.
    fn measure(&mut self, report: &StepReport) {
        let (measuring, on_trial) = (matches!(self.decision, Decision::Measuring), self.first.is_some());
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
        let own = match &self.profile {
            Some(profile) => profile.clone(),
            None => {
                StepReport::profile(self.pipeline.placement(), measured)?.with_links(self.pipeline.measure_links()?)?
            }
        };
        let own = own.with_skips(self.pipeline.plans.skips().to_vec())?;
        let profile = self.pipeline.agree_on_profile(&own)?;
        let planned = Box::new(best_plan(&request(&self.pipeline, self.size, &self.options, &profile)?)?);
        let running = self.current_plan()?;
        let seconds = simulate(running.plan(), &profile, &self.pipeline.simulate)?.makespan;
        let best = planned.best.seconds;
        tracing::info!(running = seconds, best, choice = %planned.best, "schedules compared");
        let before = running.plan().name().to_owned();
        if best >= seconds * (1.0 - self.options.gain) {
            return Ok(Decision::Kept { planned, running: before, seconds });
        }
        let first = self.pipeline.plans.source().clone();
        self.switch(source_of(&planned, self.size))?;
        self.first = (self.options.trial > 0).then_some(first);
        Ok(Decision::Switched { planned, before, seconds, measured_before: pass, measured_after: None })
    }

    /// Keeps what is on trial, or goes back to what ran before.
    fn judge(&mut self, measured: &[StepReport]) -> Result<Decision, AutoError> {
        let first = self.first.take();
        let after = self.pipeline.agree_on_longest(pass_seconds(measured))?;
        let decision = std::mem::replace(&mut self.decision, Decision::Measuring);
        let (Decision::Switched { planned, before, seconds, measured_before, .. }, Some(first)) = (decision, first)
        else {
            return Ok(Decision::Fixed);
        };
        tracing::info!(before = measured_before, after, "passes compared");
        if after <= measured_before {
            let measured_after = Some(after);
            return Ok(Decision::Switched { planned, before, seconds, measured_before, measured_after });
        }
        self.switch(first)?;
        Ok(Decision::Reverted { planned, running: before, seconds, measured_before, measured_after: after })
    }

    fn switch(&mut self, source: Source) -> Result<(), AutoError> {
        switch(&mut self.pipeline, &self.builder, source)?;
        self.switches += 1;
        Ok(())
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
