//! One cell of a rank's row: one task, two fused ones, or an idle slot.
//!
//! Guarantees: an [`Action`] is 16 bytes and `Copy`, and its text form (`2F0`, `1UNSHARD`, `'3SEND_F1`,
//! `(0F7;7B3)OVERLAP_F_B`) parses back to the same value.
//!
//! Symbols and text form are those of PyTorch's `torch.distributed.pipelining` IR. The quote before a stage of the
//! second route is an addition: PyTorch has no text form for bidirectional placements.

use super::op::Op;
use super::stage_id::StageId;
use super::task::{MicrobatchTask, Task};
use derive_more::{Display, From};
use std::fmt;

/// A cell of a plan: one task, two overlapped tasks, or an idle slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Display, From)]
pub enum Action {
    /// An idle slot: aligns rows in a drawing and does nothing when run.
    #[display("")]
    Idle,
    /// One task.
    #[from(Task, MicrobatchTask)]
    Single(Task),
    /// A forward and a backward of two different microbatches, interleaved where the device can (`OVERLAP_F_B`;
    /// DualPipe's `F&B`). Running one after the other gives the same result.
    #[display("({_0};{_1})OVERLAP_F_B")]
    Overlap(MicrobatchTask, MicrobatchTask),
}

impl Action {
    /// `F` of a stage for a microbatch.
    pub fn forward(stage: impl Into<StageId>, microbatch: usize) -> Self {
        Action::Single(Task::new(stage, Op::Forward, microbatch))
    }

    /// `B` of a stage for a microbatch: the whole backward.
    pub fn backward(stage: impl Into<StageId>, microbatch: usize) -> Self {
        Action::Single(Task::new(stage, Op::Backward, microbatch))
    }

    /// `I` of a stage for a microbatch: the backward for the input.
    pub fn backward_input(stage: impl Into<StageId>, microbatch: usize) -> Self {
        Action::Single(Task::new(stage, Op::BackwardInput, microbatch))
    }

    /// `W` of a stage for a microbatch: the backward for the weights.
    pub fn backward_weight(stage: impl Into<StageId>, microbatch: usize) -> Self {
        Action::Single(Task::new(stage, Op::BackwardWeight, microbatch))
    }

    /// The tasks of this cell in running order: none, one or two.
    pub fn tasks(self) -> impl Iterator<Item = Task> {
        match self {
            Action::Idle => Tasks([None, None]),
            Action::Single(task) => Tasks([Some(task), None]),
            Action::Overlap(first, second) => Tasks([Some(first.into()), Some(second.into())]),
        }
    }

    /// Returns true if it is an idle slot.
    pub fn is_idle(self) -> bool {
        self == Action::Idle
    }
}

/// The tasks of one [`Action`]; faster than chained iterator adapters on large plans.
struct Tasks([Option<Task>; 2]);

impl Iterator for Tasks {
    type Item = Task;

    fn next(&mut self) -> Option<Task> {
        let next = self.0[0].take();
        self.0.swap(0, 1);
        next
    }
}

impl fmt::Debug for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Idle => f.write_str("idle"),
            other => fmt::Display::fmt(other, f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_action_is_sixteen_bytes() {
        assert_eq!(size_of::<Task>(), 8);
        assert_eq!(size_of::<Action>(), 16);
    }

    #[test]
    fn tasks_come_in_running_order() {
        let first = MicrobatchTask::new(0, Op::Forward, 7);
        let second = MicrobatchTask::new(7, Op::Backward, 3);
        let tasks: Vec<Task> = Action::Overlap(first, second).tasks().collect();
        assert_eq!(tasks, [first.into(), second.into()]);
        assert_eq!(Action::Idle.tasks().count(), 0);
    }
}
