//! What was decided about the schedule, and why.

use crate::cost::{PartitionError, ProfileError};
use crate::planner::{PlannerError, PlannerReport};
use crate::simulate::SimulateError;
use crate::train::checkpoint::CheckpointError;
use crate::train::error::{BuildError, PipelineError};

/// What was decided about the schedule.
#[derive(Debug)]
pub enum Decision {
    /// Nothing yet; steps are still measured.
    Measuring,
    /// The schedule was fixed, not to be chosen.
    Fixed,
    /// The running plan is kept, as the best one is not enough faster.
    Kept {
        /// What the planner found.
        planned: Box<PlannerReport>,
        /// The plan that runs.
        running: String,
        /// Its predicted seconds.
        seconds: f64,
    },
    /// Another schedule runs now.
    Switched {
        /// What the planner found; its best runs.
        planned: Box<PlannerReport>,
        /// The plan that ran before.
        before: String,
        /// Its predicted seconds.
        seconds: f64,
        /// Seconds of a pass with the plan that ran before, the longest that any rank measured.
        measured_before: f64,
        /// The same with the chosen one; none until it has run long enough.
        measured_after: Option<f64>,
    },
    /// The first schedule runs again: the best was measured to take longer.
    Reverted {
        /// What the planner found.
        planned: Box<PlannerReport>,
        /// The plan that ran first and runs again.
        running: String,
        /// Its predicted seconds.
        seconds: f64,
        /// Seconds of a pass with the plan that runs, the longest that any rank measured.
        measured_before: f64,
        /// The same with the one that was chosen.
        measured_after: f64,
    },
    /// What runs is kept, as something failed on the way.
    Failed(AutoError),
}

/// The decision and its reasons, in words.
impl std::fmt::Display for Decision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Decision::Measuring => f.write_str("none yet: steps are still measured"),
            Decision::Fixed => f.write_str("the schedule was given"),
            Decision::Failed(error) => write!(f, "what runs is kept: {error}"),
            Decision::Kept { planned, running, seconds } => {
                writeln!(f, "{running} is kept, predicted {seconds:.6} s a pass: the best is not enough faster")?;
                planned.fmt(f)
            }
            Decision::Switched { planned, before, seconds, measured_before, measured_after } => {
                write!(f, "{before}, predicted {seconds:.6} s a pass, was left for the best; measured: ")?;
                match measured_after {
                    Some(after) => writeln!(f, "{measured_before:.6} s a pass before, {after:.6} s with the best")?,
                    None => writeln!(f, "{measured_before:.6} s a pass before, the best is still on trial")?,
                }
                planned.fmt(f)
            }
            Decision::Reverted { planned, running, seconds, measured_before, measured_after } => {
                write!(f, "{running}, predicted {seconds:.6} s a pass, runs again; measured: ")?;
                writeln!(f, "{measured_before:.6} s a pass before, {measured_after:.6} s with the best")?;
                planned.fmt(f)
            }
        }
    }
}

/// Why no other schedule could be chosen or run.
#[derive(Debug, thiserror::Error)]
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
    /// What runs cannot be simulated.
    #[error("the running plan cannot be simulated: {0}")]
    Simulate(#[from] SimulateError),
    /// The new pipeline cannot be built.
    #[error("the new pipeline cannot be built: {0}")]
    Build(#[from] BuildError),
    /// Weights cannot be moved.
    #[error("weights cannot be moved to the new pipeline: {0}")]
    Move(#[from] CheckpointError),
    /// A new pipeline would have the old module.
    #[error("a stage's module was replaced, and a new pipeline would be built with the old one")]
    Replaced,
    /// A rank failed.
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
}
