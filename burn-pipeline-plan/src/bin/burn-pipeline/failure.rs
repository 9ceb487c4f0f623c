//! Why a command failed, and its exit code.

use burn_pipeline_plan::cost::{PartitionError, ProfileError};
use burn_pipeline_plan::pass::PassError;
use burn_pipeline_plan::plan::PlanError;
use burn_pipeline_plan::planner::PlannerError;
use burn_pipeline_plan::schedule::ScheduleError;
use burn_pipeline_plan::simulate::SimulateError;

/// Why a command failed.
#[derive(thiserror::Error)]
pub(crate) enum Failure {
    /// The input is invalid.
    #[error("{0}")]
    Input(String),
    /// The plan was refused.
    #[error("{0}")]
    Refused(String),
    /// Standard output cannot be written.
    #[error("cannot write the output: {0}")]
    Output(#[from] std::io::Error),
}

burn_pipeline_plan::debug_as_text!(Failure);

impl Failure {
    /// The exit code: 1 for a refused plan, 2 otherwise.
    pub(crate) fn code(&self) -> u8 {
        if matches!(self, Failure::Refused(_)) { 1 } else { 2 }
    }
}

impl From<ScheduleError> for Failure {
    fn from(error: ScheduleError) -> Self {
        match error {
            ScheduleError::UnknownName { .. } => Failure::Input(error.to_string()),
            _ => Failure::Refused(error.to_string()),
        }
    }
}

impl From<SimulateError> for Failure {
    fn from(error: SimulateError) -> Self {
        match error {
            SimulateError::Profile(error) => error.into(),
            _ => Failure::Refused(error.to_string()),
        }
    }
}

impl From<ProfileError> for Failure {
    fn from(error: ProfileError) -> Self {
        Failure::Input(error.to_string())
    }
}

impl From<PartitionError> for Failure {
    fn from(error: PartitionError) -> Self {
        match error {
            PartitionError::DoesNotFit { .. } | PartitionError::Stages { .. } => Failure::Refused(error.to_string()),
            _ => Failure::Input(error.to_string()),
        }
    }
}

impl From<PlannerError> for Failure {
    fn from(error: PlannerError) -> Self {
        match error {
            PlannerError::NothingFits { .. } => Failure::Refused(error.to_string()),
            _ => Failure::Input(error.to_string()),
        }
    }
}

impl From<PlanError> for Failure {
    fn from(error: PlanError) -> Self {
        Failure::Input(error.to_string())
    }
}

impl From<PassError> for Failure {
    fn from(error: PassError) -> Self {
        match error {
            PassError::Simulate(error) => error.into(),
            PassError::Profile(error) => error.into(),
            error => Failure::Refused(error.to_string()),
        }
    }
}
