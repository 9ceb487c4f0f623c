//! Arguments that name a schedule: a family itself, or its name.

use super::family::{Schedule, ScheduleError};
use super::registry::by_name;

/// A schedule family, or the name of one.
///
/// ```
/// use burn_pipeline_plan::schedule::{GPipe, IntoSchedule};
///
/// assert_eq!(GPipe.into_schedule()?.family().name, "GPipe");
/// assert_eq!("zb-v".into_schedule()?.family().name, "ZBVZeroBubble");
/// assert!("2F2B".into_schedule().is_err());
/// # Ok::<(), burn_pipeline_plan::schedule::ScheduleError>(())
/// ```
pub trait IntoSchedule {
    /// The family.
    ///
    /// # Errors
    /// [`ScheduleError::UnknownName`] for a name that no family has; see [`by_name`].
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
