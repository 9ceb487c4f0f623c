//! [`ZbAuto`] as a schedule.

use super::heuristic;
use super::options::ZbAuto;
use crate::plan::{Action, PlacementKind, Plan};
use crate::schedule::schedule_trait::{Chunks, Schedule, ScheduleError, ScheduleInfo, Size};

impl Schedule for ZbAuto {
    fn info(&self) -> ScheduleInfo {
        ScheduleInfo::new(
            "ZBAuto",
            PlacementKind::Loop,
            Chunks::Exactly(1),
            "Qi et al. 2023, arXiv:2401.10241 (ZB-1P, ZB-2P)",
        )
    }

    fn build(&self, size: Size) -> Result<Plan, ScheduleError> {
        let schedule = self.info();
        schedule.check_size(size)?;
        let limit = match self.memory_limit(size.ranks) {
            Ok(limit) => limit,
            Err(accepts) => return schedule.refuse(size, accepts),
        };
        let orders = heuristic::shortest(&heuristic::Problem::new(self, size, limit));
        let action = |rank| {
            move |&(pass, m): &(heuristic::Pass, usize)| match pass {
                heuristic::Pass::Forward => Action::forward(rank, m),
                heuristic::Pass::Input => Action::backward_input(rank, m),
                heuristic::Pass::Weight => Action::backward_weight(rank, m),
            }
        };
        schedule.plan(size, |rank| orders[rank].iter().map(action(rank)).collect())
    }
}
