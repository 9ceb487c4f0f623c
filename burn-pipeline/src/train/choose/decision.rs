//! The decision about the schedule, and its reasons.

use super::trial::Trial;
use super::walk::MeasureError;
use crate::train::checkpoint::CheckpointError;
use crate::train::error::{BuildError, PipelineError};
use burn_pipeline_plan::cost::{PartitionError, ProfileError};
use burn_pipeline_plan::planner::{PlannerError, PlannerReport};
use burn_pipeline_plan::simulate::SimulateError;
use std::path::PathBuf;

/// The decision about the schedule.
#[derive(Debug)]
pub enum Decision {
    /// Nothing yet; steps are still measured.
    Measuring,
    /// The schedule was fixed by the user.
    Fixed,
    /// The running plan and a challenger take turns.
    Trying(Choice),
    /// The first plan is kept: no other one was predicted or measured to be enough faster.
    Kept(Choice),
    /// Another plan runs now.
    Switched(Choice),
    /// The running plan is kept because an error occurred.
    Failed(AutoError),
}

/// The plans that were compared, and the results.
#[derive(Debug)]
pub struct Choice {
    /// The planner's report.
    pub planned: Box<PlannerReport>,
    /// The first plan.
    pub first: String,
    /// The predicted seconds of its pass.
    pub seconds: f64,
    /// The running plan, or the one that ran before the current trial.
    pub running: String,
    /// The predicted seconds of its pass.
    pub running_seconds: f64,
    /// The trials so far, in order.
    pub trials: Vec<Trial>,
}

impl std::fmt::Display for Choice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for trial in &self.trials {
            writeln!(f, "  {trial}")?;
        }
        self.planned.fmt(f)
    }
}

impl std::fmt::Display for Decision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Decision::Measuring => f.write_str("none yet: steps are still measured"),
            Decision::Fixed => f.write_str("the schedule was given"),
            Decision::Failed(error) => write!(f, "the running plan is kept: {error}"),
            Decision::Trying(choice) => {
                let Choice { running, running_seconds, .. } = choice;
                writeln!(f, "{running}, predicted {running_seconds:.6} s a pass, and another plan take turns")?;
                choice.fmt(f)
            }
            Decision::Kept(choice) => {
                let Choice { running, running_seconds, .. } = choice;
                writeln!(f, "{running} is kept, predicted {running_seconds:.6} s a pass: no other is enough faster")?;
                choice.fmt(f)
            }
            Decision::Switched(choice) => {
                let Choice { first, seconds, running, running_seconds, .. } = choice;
                writeln!(
                    f,
                    "{first}, predicted {seconds:.6} s a pass, was left for {running}, {running_seconds:.6} s"
                )?;
                choice.fmt(f)
            }
        }
    }
}

/// Why no other schedule could be chosen or run.
#[derive(thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum AutoError {
    /// The measured steps do not give a profile.
    #[error("the measured steps do not give a profile: {0}")]
    Profile(#[from] ProfileError),
    /// The profile cannot be planned for.
    #[error("the measured stages cannot be planned for: {0}")]
    Stages(#[from] PartitionError),
    /// The planner found nothing.
    #[error("no plan was found: {0}")]
    Planner(#[from] PlannerError),
    /// The running plan cannot be simulated.
    #[error("the running plan cannot be simulated: {0}")]
    Simulate(#[from] SimulateError),
    /// Layers cannot be measured.
    #[error("the layers cannot be measured: {0}")]
    Layers(#[from] MeasureError),
    /// A cap was given, but the activation bytes of a layer or stage are unknown.
    #[error(
        "the activation bytes of layer {layer} are unknown, so no plan can be kept under the cap: {reason}; give its \
         costs (`AutoPipeline::with_profile`), or no cap"
    )]
    UnknownBytes { layer: usize, reason: String },
    /// Another process could not measure.
    #[error("rank {rank} could not measure: {message}")]
    Elsewhere { rank: usize, message: String },
    /// The folder for stages that move cannot be created.
    #[error("the folder {} for stages that move cannot be created: {message}", folder.display())]
    Folder { folder: PathBuf, message: String },
    /// Another plan or its stages cannot be built.
    #[error("the other plan's stages cannot be built: {0}")]
    Build(#[from] BuildError),
    /// A rank cannot build the stages of another plan.
    #[error("rank {rank} cannot build the other plan's stages: {message}")]
    OtherStages { rank: usize, message: String },
    /// Weights cannot be moved.
    #[error("weights cannot be moved to the other stages: {0}")]
    Move(#[from] CheckpointError),
    /// A new pipeline would have the old module.
    #[error("a stage's module was replaced, and a new pipeline would be built with the old one")]
    Replaced,
    /// A rank failed.
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
}

burn_pipeline_plan::debug_as_text!(AutoError);
