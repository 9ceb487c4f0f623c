//! Collectives of all ranks: every rank must start them in one order, since they share a communicator.
//!
//! The scan has proved that each occurs once in every row, so rows are compared with the first one position by
//! position.

use super::error::CheckError;
use crate::plan::rows::Plan;
use crate::plan::task::Task;

/// Refuses a plan whose ranks start collectives in different orders.
pub(super) fn refuse_collective_disorder(plan: &Plan) -> Result<(), Box<CheckError>> {
    let order: Vec<(usize, Task)> = collectives(plan, 0).collect();
    for rank in 1..plan.ranks() {
        let mut both = collectives(plan, rank).zip(&order).enumerate();
        if let Some((position, ((step, task), &(first_step, first)))) = both.find(|(_, (own, first))| own.1 != first.1)
        {
            let (first_rank, grid) = (0, plan.excerpt(rank, step));
            let error = CheckError::CollectiveOrder { rank, step, task, position, first_rank, first, first_step, grid };
            return Err(Box::new(error));
        }
    }
    Ok(())
}

/// The collectives of a row with their steps.
fn collectives(plan: &Plan, rank: usize) -> impl Iterator<Item = (usize, Task)> + '_ {
    let cells = plan.row(rank).iter().enumerate();
    cells
        .flat_map(|(step, action)| action.tasks().map(move |task| (step, task)))
        .filter(|(_, task)| task.op().is_rank_collective())
}
