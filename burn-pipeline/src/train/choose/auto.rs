//! A schedule chosen by the costs measured in the first steps.
//!
//! Guarantees: the numbers are those of a pipeline that never switched (bit for bit with ordered accumulation and one
//! number of microbatches). If planning or switching fails, the running plan stays, with the reason in [`Decision`].
//! The final plan is the first one, or was measured to be faster than the one before it.
//!
//! 1. Training starts with a schedule that splits its backward, so that `F`, `I` and `W` are measured separately. The
//!    first steps warm up; the next ones are measured; then the links, and the layers if they may be cut
//!    ([`costs`](super::costs)).
//! 2. The planner prices everything that can run on the same ranks ([`compare`](super::compare)): schedules,
//!    placements, cuts, numbers of stages and of microbatches, recomputation, passes, and schedules synthesised for the
//!    costs. Costs are the median of all ranks' measurements, so ranks in processes get the same answer.
//! 3. If the best plan is predicted to be enough faster, it and the running plan take turns ([`Trials`]). Costs depend
//!    on what runs beside them, especially on shared cores, so both are measured in the same minutes. Then 1F1B (or
//!    else Interleaved1F1B) is tried, which does not split its backward and depends least on costs.

use super::compare::{Setting, compare, first, first_schedule};
use super::contender::Contender;
use super::decision::{AutoError, Choice, Decision};
use super::options::AutoOptions;
use super::trials::Trials;
use crate::layers::Model;
use crate::link::Link;
use crate::stage::Batch;
use crate::train::error::{BuildError, PipelineError};
use crate::train::features::Feature;
use crate::train::pipeline::Pipeline;
use crate::train::report::StepReport;
use crate::train::setup::Builder;
use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn_pipeline_plan::cost::Profile;
use burn_pipeline_plan::plan::{CheckedPlan, Plan};
use burn_pipeline_plan::schedule::{ScheduleError, Size};
use std::sync::Arc;

/// A pipeline that measures its first steps and then chooses its schedule.
///
/// It starts with a zero-bubble schedule. After [`AutoOptions::measured`] steps it plans with the measured costs. If
/// another plan is predicted to be enough faster, both take turns, and it stays if it is measured to be faster. Losses
/// and weights are those of a pipeline that never switched.
///
/// It may also change the cut of the model (with [`AutoOptions::layers`]), the number of microbatches
/// ([`AutoOptions::microbatches`]), and recompute stages to fit under a cap ([`AutoOptions::recompute`]). Stages that
/// move are stored in a folder ([`AutoOptions::folder`]), so parameters need names that are unique in the model; see
/// [`Names`](crate::stage::Names). While two plans with different stages take turns, a rank holds the weights and
/// optimizer state of both.
#[derive(Debug)]
pub struct AutoPipeline {
    setting: Setting,
    pipeline: Pipeline,
    phase: Phase,
    switches: usize,
    decision: Decision,
}

/// The purpose of measuring steps.
#[derive(Debug)]
enum Phase {
    /// Measuring costs for planning.
    Measuring(Box<Contender>, Vec<StepReport>),
    /// Comparing plans.
    Trying(Box<Trials>),
    /// Not measuring.
    Over,
}

impl AutoPipeline {
    /// Starts with a zero-bubble schedule of this size, over the builder's cut or an even one. The builder needs no
    /// schedule; one that it has is ignored. The ranks do not change.
    ///
    /// # Errors
    /// Same as [`Builder::build`]. Also fails if there are fewer layers than stages.
    pub fn new(builder: Builder, size: Size, options: AutoOptions) -> Result<Self, BuildError> {
        Self::start(builder, size, options, Builder::build)
    }

    /// Like [`AutoPipeline::new`], for one rank in this process, connected to the others by `link`. All processes make
    /// the same calls ([`Builder::build_rank`]) and reach the same decision. Stages move only if all processes see the
    /// folder ([`AutoOptions::folder`]) and no parameter is tied across stages.
    ///
    /// # Errors
    /// Same as [`Builder::build_rank`]. Also fails if there are fewer layers than stages.
    pub fn new_rank(
        builder: Builder,
        size: Size,
        options: AutoOptions,
        link: Box<dyn Link>,
    ) -> Result<Self, BuildError> {
        Self::start(builder, size, options, |builder| builder.build_rank(link))
    }

    fn start(
        builder: Builder,
        size: Size,
        options: AutoOptions,
        build: impl FnOnce(Builder) -> Result<Pipeline, BuildError>,
    ) -> Result<Self, BuildError> {
        let options = AutoOptions { layers: options.layers.or(builder.layers.as_ref().map(Model::layers)), ..options };
        let first = first(&builder, size, &options)?;
        let mut pipeline = build(first.builder.clone().source(first.source.clone()))?;
        pipeline.goes_with(Feature::AutoPipeline)?;
        // Ranks in processes plan in the same step, with the same limits. Each may have another folder.
        let limits = AutoOptions { folder: None, ..options.clone() };
        pipeline.agree_on_text(format!("{limits:?}")).map_err(|error| match error {
            PipelineError::Diverged { rank, theirs, others } => BuildError::AutoOptions { rank, theirs, own: others },
            other => BuildError::Stages(Box::new(other)),
        })?;
        let setting = Setting { builder, size, options, profile: None };
        Ok(Self::with(setting, pipeline, Phase::Measuring(Box::new(first), Vec::new()), Decision::Measuring))
    }

    fn with(setting: Setting, pipeline: Pipeline, phase: Phase, decision: Decision) -> Self {
        Self { setting, pipeline, phase, switches: 0, decision }
    }

    /// Plans with these costs, for example of an earlier run, instead of measured ones: costs of the layers, or of the
    /// first plan's stages, which are then kept. Ranks in processes use the median of theirs. Plans are still compared
    /// by measured steps, so wrong costs do not lead to a slower plan.
    pub fn with_profile(self, profile: Profile) -> Self {
        Self { setting: Setting { profile: Some(profile), ..self.setting }, ..self }
    }

    /// The plan that runs while steps are measured, without transfers.
    ///
    /// # Errors
    /// Returns [`ScheduleError`] if no plan of that size can be built.
    pub fn first_plan(size: Size) -> Result<Plan, ScheduleError> {
        first_schedule(size)?.build(size)
    }

    /// Wraps a pipeline that keeps its schedule, for programs that use either kind.
    pub fn fixed(pipeline: Pipeline) -> Self {
        let (builder, options) = (Builder::default(), AutoOptions::default());
        let setting = Setting { builder, size: Size::new(1, 1), options, profile: None };
        Self::with(setting, pipeline, Phase::Over, Decision::Fixed)
    }

    /// The running pipeline.
    pub fn pipeline(&mut self) -> &mut Pipeline {
        &mut self.pipeline
    }

    /// The decision and its reasons.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// How often the plan was changed so far; each turn of a trial counts.
    pub fn switches(&self) -> usize {
        self.switches
    }

    /// The running plan, lowered.
    ///
    /// # Errors
    /// Same as [`Pipeline::plan`].
    pub fn current_plan(&mut self) -> Result<Arc<CheckedPlan>, BuildError> {
        self.pipeline.plans.current()
    }

    /// Trains on one batch. After the last measured step it also plans; later it changes plans between steps while they
    /// are compared.
    ///
    /// # Errors
    /// Same as [`Pipeline::step`]. Failures of planning and switching are not errors: see [`AutoPipeline::decision`].
    pub fn step(
        &mut self,
        batch: Batch,
        learning_rate: impl Into<ModuleLearningRate>,
    ) -> Result<StepReport, PipelineError> {
        let wanted = self.setting.options.warm_up.saturating_add(self.setting.options.measured.max(1));
        let last = matches!(&self.phase, Phase::Measuring(_, steps) if steps.len() + 1 >= wanted);
        let sample = last.then(|| batch.clone());
        let report = self.pipeline.step(batch, learning_rate)?;
        // A smaller batch (the last of an epoch, for example) has other costs.
        if report.microbatches == self.pipeline.plans.microbatches() {
            self.take(&report, sample);
        }
        Ok(report)
    }

    /// Takes a step's measurements, and decides once there are enough.
    fn take(&mut self, report: &StepReport, sample: Option<Batch>) {
        match std::mem::replace(&mut self.phase, Phase::Over) {
            Phase::Over => {}
            Phase::Measuring(running, mut steps) => {
                // Outputs are not measured, and may be large.
                steps.push(StepReport { outputs: Vec::new(), ..report.clone() });
                let Some(batch) = sample else {
                    self.phase = Phase::Measuring(running, steps);
                    return;
                };
                let measured = steps.split_off(self.setting.options.warm_up);
                match compare(&self.setting, &mut self.pipeline, *running, &measured, &batch) {
                    Ok((trials, choice)) => self.go_on(trials, choice, Trials::next),
                    Err(error) => self.fail(error),
                }
            }
            Phase::Trying(trials) => {
                if let Decision::Trying(choice) = std::mem::replace(&mut self.decision, Decision::Measuring) {
                    self.go_on(trials, choice, |trials, pipeline, choice| {
                        trials.take(pipeline, choice, report.seconds)
                    });
                }
            }
        }
    }

    /// Takes the trials one step further; `next` returns whether they continue.
    fn go_on(
        &mut self,
        mut trials: Box<Trials>,
        mut choice: Choice,
        next: impl FnOnce(&mut Trials, &mut Pipeline, &mut Choice) -> Result<bool, AutoError>,
    ) {
        let goes_on = next(&mut trials, &mut self.pipeline, &mut choice);
        self.switches += std::mem::take(&mut trials.switches);
        match goes_on {
            Ok(true) => (self.phase, self.decision) = (Phase::Trying(trials), Decision::Trying(choice)),
            Ok(false) if choice.running == choice.first => self.decision = Decision::Kept(choice),
            Ok(false) => self.decision = Decision::Switched(choice),
            Err(error) => {
                trials.give_up(&mut self.pipeline);
                self.fail(error);
            }
        }
    }

    fn fail(&mut self, error: AutoError) {
        tracing::warn!(%error, "the schedule stays as it is");
        self.decision = Decision::Failed(error);
    }
}
