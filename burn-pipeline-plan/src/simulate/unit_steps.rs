//! The unit-step simulation: every action takes one step. It counts steps before and after a pass.
//!
//! Guarantees: the rows equal those of PyTorch 2.7.1's `_simulate_comms_compute`, cell by cell, idle cells included.
//!
//! 1. In each step, the ranks in order run their next action if its inputs have been made. Inputs made by a lower
//!    rank in the same step count. Otherwise the rank idles.
//! 2. Then every rank that idled tries once more, because a higher rank may have unblocked it in the same step.
//! 3. A step in which no rank runs an action is a deadlock.
//!
//! The rules for what is ready are PyTorch's. They are looser than those of [`Plan::check`]: a backward of the last
//! stage can always run, and so can any `W` but one that is the whole backward.

use super::error::SimulateError;
use crate::plan::{Action, MicrobatchTask, Op, Placement, Plan, Task, Waiting};
use crate::trace::Track;
use std::collections::HashSet;

/// Simulates a plan in which every action takes one step. Returns a row for each rank with a cell for each step, up to
/// the rank's last action. [`Track::of_steps`] makes a track of the rows.
///
/// # Errors
/// - Returns [`SimulateError::Unsupported`] for fused actions, `UNSHARD`, `RESHARD`, `REDUCE_GRAD`, waits and the tasks
///   of a parallel vocabulary.
/// - Returns [`SimulateError::Foreign`] if a stage is not in the placement.
/// - Returns [`SimulateError::Deadlock`], with the steps so far, if a step makes no progress.
///
/// ```
/// use burn_pipeline_plan::{plan::Plan, simulate::unit_steps};
/// let plan = Plan::from_csv("two ranks", "0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n")?;
/// let steps = unit_steps(&plan)?;
/// assert_eq!((steps[0].len(), steps[1].len()), (6, 5));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn unit_steps(plan: &Plan) -> Result<Vec<Vec<Action>>, SimulateError> {
    let mut steps = Steps::new(plan)?;
    while steps.unfinished() {
        steps.step()?;
    }
    Ok(steps.rows)
}

struct Steps<'a> {
    plan: &'a Plan,
    placement: &'a Placement,
    left: Vec<std::iter::Peekable<std::vec::IntoIter<MicrobatchTask>>>,
    done: Vec<HashSet<Task>>,
    rows: Vec<Vec<Action>>,
}

impl<'a> Steps<'a> {
    fn new(plan: &'a Plan) -> Result<Self, SimulateError> {
        let placement = plan.placement();
        let task = |(rank, (step, &action)): (usize, (usize, &Action))| match action {
            Action::Single(task) if !placement.contains(task.stage()) => {
                Err(SimulateError::Foreign { rank, step, action, reason: "the plan has no such stage" })
            }
            Action::Single(task) if !task.op().is_wait() && !task.op().is_vocabulary() => {
                task.of_microbatch().ok_or(SimulateError::Unsupported { rank, action })
            }
            _ => Err(SimulateError::Unsupported { rank, action }),
        };
        let row = |(rank, row): (usize, &Vec<Action>)| {
            let cells = row.iter().enumerate().filter(|(_, action)| !action.is_idle());
            cells.map(|cell| task((rank, cell))).collect::<Result<Vec<_>, _>>()
        };
        let left = plan.rows().iter().enumerate().map(row).collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            plan,
            placement,
            left: left.into_iter().map(|row| row.into_iter().peekable()).collect(),
            done: vec![HashSet::new(); plan.ranks()],
            rows: vec![Vec::new(); plan.ranks()],
        })
    }

    fn unfinished(&mut self) -> bool {
        self.left.iter_mut().any(|row| row.peek().is_some())
    }

    fn step(&mut self) -> Result<(), SimulateError> {
        let mut idle = Vec::new();
        let mut progress = false;
        for rank in 0..self.left.len() {
            if self.left[rank].peek().is_none() {
                continue;
            }
            let ran = self.run_next(rank);
            self.rows[rank].push(ran.map_or(Action::Idle, Action::Single));
            match ran {
                Some(_) => progress = true,
                None => idle.push(rank),
            }
        }
        if !progress {
            return Err(self.deadlock());
        }
        for rank in idle {
            if let (Some(task), Some(cell)) = (self.run_next(rank), self.rows[rank].last_mut()) {
                *cell = task.into();
            }
        }
        Ok(())
    }

    /// Runs a rank's next task if it is ready.
    fn run_next(&mut self, rank: usize) -> Option<Task> {
        let &next = self.left[rank].peek()?;
        self.awaits(next).is_empty().then(|| {
            self.left[rank].next();
            self.done[rank].insert(*next);
            *next
        })
    }

    /// Tasks of which any one would make `task` ready; empty if it is ready.
    fn awaits(&self, task: MicrobatchTask) -> Vec<Task> {
        let stage = task.stage();
        let (previous, next) = (stage.previous(), self.placement.next(stage));
        let of = |stage, op| Task::from(task.with(stage, op));
        let backwards = |stage| [of(stage, Op::BackwardInput), of(stage, Op::Backward)];
        if task.op().is_transfer() && !task.op().is_send() {
            // No stage sends to the first stage, and none sends a gradient to the last. Such a receive never runs.
            let send = self.placement.peer(*task).and_then(|_| task.other_end()).unwrap_or(*task);
            let sent = self.done[self.placement.rank_of(send.stage())].contains(&send);
            return if sent { Vec::new() } else { vec![send] };
        }
        let any: Vec<Task> = match (task.op(), previous, next) {
            (Op::Forward, Some(previous), _) => vec![of(stage, Op::ReceiveForward), of(previous, Op::Forward)],
            (_, _, Some(next)) if self.plan.begins_backward(task) => {
                [[of(stage, Op::ReceiveBackward); 2], backwards(next)].concat()
            }
            (Op::SendForward, ..) => vec![of(stage, Op::Forward)],
            (Op::SendBackward, ..) => backwards(stage).to_vec(),
            _ => return Vec::new(),
        };
        let done = &self.done[self.placement.rank_of(stage)];
        if any.iter().any(|task| done.contains(task)) { Vec::new() } else { any }
    }

    fn deadlock(&mut self) -> SimulateError {
        let next: Vec<Option<MicrobatchTask>> = self.left.iter_mut().map(|row| row.peek().copied()).collect();
        let waiting = next.iter().enumerate().filter_map(|(rank, &task)| {
            let (task, awaits) = (task?, *self.awaits(task?).first()?);
            let on = self.placement.rank_of(awaits.stage());
            Some(Waiting { rank, step: self.done[rank].len(), action: task.into(), needs: awaits, on })
        });
        SimulateError::Deadlock {
            waiting: waiting.collect(),
            so_far: Box::new(Track::of_steps(self.plan.name(), &self.rows)),
        }
    }
}
