//! Conversion of arguments into a schedule, from a schedule or a name.

use super::registry::by_name;
use super::schedule_trait::{Schedule, ScheduleError};

/// A schedule or its name.
///
/// ```
/// use burn_pipeline_plan::schedule::{GPipe, IntoSchedule};
///
/// assert_eq!(GPipe.into_schedule()?.info().name, "GPipe");
/// assert_eq!("zb-v".into_schedule()?.info().name, "ZBVZeroBubble");
/// assert!("2F2B".into_schedule().is_err());
/// # Ok::<(), burn_pipeline_plan::schedule::ScheduleError>(())
/// ```
pub trait IntoSchedule {
    /// Returns the schedule.
    ///
    /// # Errors
    /// Returns [`ScheduleError::UnknownName`] for an unknown name; see [`by_name`].
    fn into_schedule(self) -> Result<Box<dyn Schedule>, ScheduleError>;
}

impl<S: Schedule + 'static> IntoSchedule for S {
    fn into_schedule(self) -> Result<Box<dyn Schedule>, ScheduleError> {
        Ok(Box::new(self))
    }
}

impl IntoSchedule for Box<dyn Schedule> {
    fn into_schedule(self) -> Result<Box<dyn Schedule>, ScheduleError> {
        Ok(self)
    }
}

impl IntoSchedule for &str {
    fn into_schedule(self) -> Result<Box<dyn Schedule>, ScheduleError> {
        by_name(self)
    }
}
