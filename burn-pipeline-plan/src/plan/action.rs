//! What one rank is told to do: an operation on one stage for one microbatch.
//!
//! Guarantees: an [`Action`] is 16 bytes, `Copy`, and its text form (`2F0`, `1UNSHARD`, `'3SEND_F1`,
//! `(0F7;7B3)OVERLAP_F_B`) parses back to the same value. Large plans hold close to a million of them,
//! so the layout matters: stage, replica, operation and microbatch are packed into one [`Task`] of 8 bytes.
//!
//! The letters and the text form are those of PyTorch's `torch.distributed.pipelining` IR; the quote before
//! a stage of the second replica is ours (bidirectional placements have no text form there).

use super::op::Op;
use serde::{Deserialize, Serialize};
use std::fmt;

/// One stage of a model, in one of its replicas.
///
/// Text form: the index, with a quote before it in the second replica (`3`, `'3`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "(u8, u16)", into = "(u8, u16)")]
pub struct StageId {
    replica: u8,
    index: u16,
}

impl From<StageId> for (u8, u16) {
    fn from(stage: StageId) -> Self {
        (stage.replica, stage.index)
    }
}

impl TryFrom<(u8, u16)> for StageId {
    type Error = &'static str;

    fn try_from((replica, index): (u8, u16)) -> Result<Self, Self::Error> {
        if replica < 2 { Ok(Self { replica, index }) } else { Err("a stage's replica is 0 or 1") }
    }
}

impl StageId {
    /// The stage `index` of the first replica, counted from the model's input.
    ///
    /// # Panics
    /// Above 65,535; schedules and parsers refuse such sizes before they come here.
    pub fn new(index: usize) -> Self {
        Self::in_replica(0, index)
    }

    /// The stage `index` of replica 0 or 1 (bidirectional placements hold the model twice).
    ///
    /// # Panics
    /// If `index` is above 65,535 or `replica` above 1.
    pub fn in_replica(replica: usize, index: usize) -> Self {
        assert!(replica < 2 && index <= u16::MAX as usize, "stage {index} of replica {replica} is out of range");
        Self { replica: replica as u8, index: index as u16 }
    }

    /// Position in the model, 0 at its input.
    pub fn index(self) -> usize {
        self.index as usize
    }

    /// Replica of the model (0, or 1 in the second route of a bidirectional placement).
    pub fn replica(self) -> usize {
        self.replica as usize
    }

    /// The stage whose output this one reads, or `None` for the first.
    pub fn previous(self) -> Option<Self> {
        Some(Self { index: self.index.checked_sub(1)?, ..self })
    }

    /// The stage that follows in a model of `stages` stages, or `None` for the last.
    pub fn next(self, stages: usize) -> Option<Self> {
        let index = self.index.checked_add(1)?;
        ((index as usize) < stages).then_some(Self { index, ..self })
    }
}

impl From<usize> for StageId {
    fn from(index: usize) -> Self {
        Self::new(index)
    }
}

impl fmt::Display for StageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.replica == 1 {
            f.write_str("'")?;
        }
        self.index.fmt(f)
    }
}

impl fmt::Debug for StageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One operation on one stage, for one microbatch where the operation has one.
///
/// The microbatch is counted within the stage's route: in a bidirectional placement both routes start at 0
/// (`Plan::sample` maps to the position in the batch).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Task {
    microbatch: u32,
    stage: u16,
    /// The replica in the lowest bit; above it the span of a skip transfer, 0 for all else.
    replica: u8,
    op: Op,
}

const NO_MICROBATCH: u32 = u32::MAX;

impl Task {
    /// The largest number of microbatches that a plan may count.
    pub const MAX_MICROBATCHES: usize = (u32::MAX - 1) as usize;

    /// The most stages that an edge past the next stage may span.
    pub const MAX_SKIP: usize = 127;

    /// A send or receive of a value that goes past the next stage, or the wait for one: `peer` is the stage at its other
    /// end.
    ///
    /// Text form: `0SEND_F2>3` hands stage 0's value to stage 3, which takes it with `3RECV_F2<0`; the gradient comes
    /// back with `3SEND_B2>0` and `0RECV_B2<3`. Waits are written alike: `0WAIT_SEND_F2>3`.
    ///
    /// # Panics
    /// If the operation is no transfer and no wait for one, or `peer` is not 2 to [`Task::MAX_SKIP`] stages further on (of a `SEND_F` or
    /// `RECV_B`) or before (of a `RECV_F` or `SEND_B`).
    pub fn skip(stage: impl Into<StageId>, op: Op, microbatch: usize, peer: usize) -> Self {
        let stage = stage.into();
        let span = if op.is_towards_next() { peer.checked_sub(stage.index()) } else { stage.index().checked_sub(peer) };
        let moves = op.is_transfer() || op.is_transfer_wait();
        let span = span.filter(|span| moves && (2..=Self::MAX_SKIP).contains(span));
        let Some(span) = span else { panic!("{op} of stage {stage} cannot reach stage {peer} past a neighbour") };
        let task = Self::new(stage, op, microbatch);
        Self { replica: task.replica | (span as u8) << 1, ..task }
    }

    /// An operation that belongs to a microbatch.
    ///
    /// # Panics
    /// If the operation has no microbatch (see [`Op::has_microbatch`]) or the number is above
    /// [`Task::MAX_MICROBATCHES`].
    pub fn new(stage: impl Into<StageId>, op: Op, microbatch: usize) -> Self {
        assert!(op.has_microbatch(), "{op} has no microbatch");
        assert!(microbatch <= Self::MAX_MICROBATCHES, "microbatch {microbatch} is out of range");
        Self::pack(stage.into(), op, microbatch as u32)
    }

    /// An operation on a stage as a whole.
    ///
    /// # Panics
    /// If the operation belongs to a microbatch.
    pub fn whole_stage(stage: impl Into<StageId>, op: Op) -> Self {
        assert!(!op.has_microbatch(), "{op} needs a microbatch");
        Self::pack(stage.into(), op, NO_MICROBATCH)
    }

    fn pack(stage: StageId, op: Op, microbatch: u32) -> Self {
        Self { microbatch, stage: stage.index, replica: stage.replica, op }
    }

    /// The stage it works on.
    pub fn stage(self) -> StageId {
        StageId { replica: self.replica & 1, index: self.stage }
    }

    /// The wait for this start, of the same stage, microbatch and peer; `None` for what cannot be awaited.
    pub fn wait(self) -> Option<Self> {
        self.op.wait().map(|op| Self { op, ..self })
    }

    /// The start that this wait waits for; `None` for all else.
    pub fn awaits(self) -> Option<Self> {
        self.op.awaits().map(|op| Self { op, ..self })
    }

    /// Is it a transfer past a neighbour, or the wait for one?
    #[inline]
    pub fn is_skip(self) -> bool {
        self.replica > 1
    }

    /// The stage at the other end of a transfer past a neighbour, or of the one that a wait waits for.
    pub fn skip_peer(self) -> Option<StageId> {
        let span = u16::from(self.replica >> 1);
        let index = if self.op.is_towards_next() { self.stage.checked_add(span) } else { self.stage.checked_sub(span) };
        index.filter(|_| self.is_skip()).map(|index| StageId { replica: self.replica & 1, index })
    }

    /// What it does.
    pub fn op(self) -> Op {
        self.op
    }

    /// The microbatch within the stage's route, for operations that have one.
    pub fn microbatch(self) -> Option<usize> {
        (self.microbatch != NO_MICROBATCH).then_some(self.microbatch as usize)
    }
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.stage(), self.op)?;
        self.microbatch().map_or(Ok(()), |m| m.fmt(f))?;
        let sign = if self.op.awaits().unwrap_or(self.op).is_send() { '>' } else { '<' };
        self.skip_peer().map_or(Ok(()), |peer| write!(f, "{sign}{}", peer.index()))
    }
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One cell of a plan: a task, two tasks to run overlapped, or an idle slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Action {
    /// An idle slot: keeps rows aligned in a drawing, means nothing when run.
    Idle,
    /// One task.
    Single(Task),
    /// A forward and a backward of two different microbatches, to be interleaved where the device can
    /// (`OVERLAP_F_B`; DualPipe's `F&B`). Run one after the other it means the same.
    Overlap(Task, Task),
}

impl Action {
    /// `F` of a stage for a microbatch.
    pub fn forward(stage: impl Into<StageId>, microbatch: usize) -> Self {
        Action::Single(Task::new(stage, Op::Forward, microbatch))
    }

    /// `B`: the whole backward.
    pub fn backward(stage: impl Into<StageId>, microbatch: usize) -> Self {
        Action::Single(Task::new(stage, Op::Backward, microbatch))
    }

    /// `I`: the backward for the input alone.
    pub fn backward_input(stage: impl Into<StageId>, microbatch: usize) -> Self {
        Action::Single(Task::new(stage, Op::BackwardInput, microbatch))
    }

    /// `W`: the backward for the weights alone.
    pub fn backward_weight(stage: impl Into<StageId>, microbatch: usize) -> Self {
        Action::Single(Task::new(stage, Op::BackwardWeight, microbatch))
    }

    /// The tasks of this cell, in the order in which they run one after the other: none, one or two.
    pub fn tasks(self) -> Tasks {
        match self {
            Action::Idle => Tasks([None, None]),
            Action::Single(task) => Tasks([Some(task), None]),
            Action::Overlap(first, second) => Tasks([Some(first), Some(second)]),
        }
    }

    /// Is it an idle slot?
    pub fn is_idle(self) -> bool {
        self == Action::Idle
    }
}

impl From<Task> for Action {
    fn from(task: Task) -> Self {
        Action::Single(task)
    }
}

/// The tasks of one [`Action`], at most two; see [`Action::tasks`].
#[derive(Clone, Copy, Debug)]
pub struct Tasks([Option<Task>; 2]);

impl Iterator for Tasks {
    type Item = Task;

    fn next(&mut self) -> Option<Task> {
        let next = self.0[0].take();
        self.0.swap(0, 1);
        next
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Idle => Ok(()),
            Action::Single(task) => task.fmt(f),
            Action::Overlap(first, second) => write!(f, "({first};{second})OVERLAP_F_B"),
        }
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
        let first = Task::new(0, Op::Forward, 7);
        let second = Task::new(7, Op::Backward, 3);
        assert_eq!(Action::Overlap(first, second).tasks().collect::<Vec<_>>(), [first, second]);
        assert_eq!(Action::Idle.tasks().count(), 0);
    }
}
