//! Why a command failed, and its exit code.

use burn_pipeline_plan::cost::{PartitionError, ProfileError};
use burn_pipeline_plan::pass::PassError;
use burn_pipeline_plan::plan::PlanError;
use burn_pipeline_plan::planner::PlannerError;
use burn_pipeline_plan::schedule::ScheduleError;
use burn_pipeline_plan::simulate::SimulateError;

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

/// Makes failures of a type of errors: a refused plan where the condition holds, else invalid input.
macro_rules! failure {
    ($error:ty, refused: $refused:expr) => {
        impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                let refused: fn(&$error) -> bool = $refused;
                if refused(&error) { Failure::Refused(error.to_string()) } else { Failure::Input(error.to_string()) }
            }
        }
    };
}

failure!(PlanError, refused: |_| false);
failure!(ProfileError, refused: |_| false);
failure!(ScheduleError, refused: |error| !matches!(error, ScheduleError::UnknownName { .. }));
failure!(SimulateError, refused: |error| !matches!(error, SimulateError::Profile(_)));
failure!(PassError, refused: |error| {
    !matches!(error, PassError::Profile(_) | PassError::Simulate(SimulateError::Profile(_)))
});
failure!(PartitionError, refused: |error| {
    matches!(error, PartitionError::DoesNotFit { .. } | PartitionError::Stages { .. })
});
failure!(PlannerError, refused: |error| matches!(error, PlannerError::NothingFits { .. }));
