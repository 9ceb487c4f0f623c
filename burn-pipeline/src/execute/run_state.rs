//! One run of one rank's row: what it has gathered so far.

use super::values::Values;
use super::{RankOutcome, Run};
use crate::plan::{Action, StageId, Task};
use crate::stage::{LossPart, Reduction};
use crate::trace::Event;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// What a run gathers.
pub(super) struct RunState<'a> {
    pub(super) run: Run<'a>,
    pub(super) values: Values,
    pub(super) outcome: RankOutcome,
    pub(super) losses: BTreeMap<usize, LossPart>,
    /// When the current task began, by the step's clock.
    pub(super) started: Duration,
    /// How many tensors of a stage's input came from its neighbour, and how many along each edge past it.
    pub(super) pieces: HashMap<(StageId, usize), Vec<usize>>,
    /// Events of what is still on its way, by its task.
    pub(super) open: HashMap<Task, usize>,
}

impl RunState<'_> {
    pub(super) fn note(&mut self, rank: usize, action: Action, start: Duration) {
        let (start, end) = (start.as_secs_f64(), self.run.began.elapsed().as_secs_f64());
        self.outcome.events.push(Event { rank, action, start, end });
    }

    /// The last event's task goes on beside what follows.
    pub(super) fn keep_open(&mut self, task: Task) {
        self.open.insert(task, self.outcome.events.len().saturating_sub(1));
    }

    /// What a task started is over now.
    pub(super) fn close(&mut self, task: Task) {
        let event = self.open.remove(&task).and_then(|at| self.outcome.events.get_mut(at));
        event.into_iter().for_each(|event| event.end = self.run.began.elapsed().as_secs_f64());
    }

    /// What a microbatch's loss weighs in the batch's.
    pub(super) fn weight(&self, index: usize, part: &LossPart) -> Result<f64, String> {
        match (self.run.seeding.reduction, &part.weight) {
            (Reduction::Mean, _) => Ok(self.run.batch.size(index) as f64),
            (Reduction::Sum, _) => Ok(1.0),
            (Reduction::Weighted, Some(weight)) => weight.read(),
            (Reduction::Weighted, None) => {
                Err("the reduction is `Weighted`, but the loss came without a weight; return `Loss::weighted`".into())
            }
        }
    }
}
