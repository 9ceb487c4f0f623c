//! Schedules without options, each a description and a function, and the plan that a schedule's rows form.
//!
//! Guarantees: the function of a [`Fixed`] runs only for sizes that [`ScheduleInfo::check_size`] allows.

use super::schedule_trait::{Schedule, ScheduleError, ScheduleInfo, Size};
use crate::plan::{Action, Placement, PlacementKind, Plan};

/// A schedule without options.
pub(super) struct Fixed {
    /// Its name and the sizes that it accepts.
    pub(super) info: ScheduleInfo,
    /// Builds the plan, for a size that has passed [`ScheduleInfo::check_size`].
    pub(super) build: fn(&ScheduleInfo, Size) -> Result<Plan, ScheduleError>,
}

impl Schedule for Fixed {
    fn info(&self) -> ScheduleInfo {
        self.info.clone()
    }

    fn build(&self, size: Size) -> Result<Plan, ScheduleError> {
        self.info.check_size(size)?;
        (self.build)(&self.info, size)
    }
}

/// Writes the name.
impl std::fmt::Debug for Fixed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.info.name)
    }
}

impl ScheduleInfo {
    /// The plan with the rows of `row_of` on this schedule's kind of placement.
    pub(super) fn plan(&self, size: Size, row_of: impl Fn(usize) -> Vec<Action>) -> Result<Plan, ScheduleError> {
        let placement = Placement::of_kind(self.placement, size.ranks, size.chunks)?;
        let microbatches = match self.placement {
            PlacementKind::Bidirectional => size.both_directions().to_vec(),
            _ => vec![size.microbatches],
        };
        Ok(Plan::new(self.name, placement, microbatches, (0..size.ranks).map(row_of).collect())?)
    }
}
