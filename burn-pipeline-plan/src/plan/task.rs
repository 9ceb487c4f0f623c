//! One task of a rank: an operation on one stage, of one microbatch or of the stage as a whole.
//!
//! Guarantees: a task is 8 bytes and `Copy`; its text form (`2F0`, `1UNSHARD`, `'3SEND_F1`, `0SEND_F2>3`) parses
//! back to the same value. The layout matters because plans may have 2^27 tasks: stage, route, operation and
//! microbatch are packed.
//!
//! There are two types:
//!
//! 1. [`Task`] is any task, for code that reads whole rows.
//! 2. [`MicrobatchTask`] is a task with a microbatch: a computation, a transfer, or the wait for a transfer. Code
//!    that computes or moves values takes this type and never has to handle a missing microbatch.

use super::op::Op;
use super::stage_id::StageId;
use derive_more::{Deref, Display, Into};
use std::fmt;

/// One operation on one stage, for one microbatch where the operation has one.
///
/// The microbatch is counted within the stage's route: in a bidirectional placement both routes start at 0
/// ([`Plan::index_in_batch`](super::Plan::index_in_batch) gives the position in the batch).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Task {
    microbatch: u32,
    stage: u16,
    /// The route in the lowest bit; above it the span of a skip transfer, 0 for other tasks.
    route: u8,
    op: Op,
}

const NO_MICROBATCH: u32 = u32::MAX;

impl Task {
    /// The largest number of microbatches that a plan may count.
    pub const MAX_MICROBATCHES: usize = (u32::MAX - 1) as usize;

    /// The most stages that a skip edge may span.
    pub const MAX_SKIP: usize = 127;

    /// A task of one microbatch.
    ///
    /// # Panics
    /// Panics as [`MicrobatchTask::new`] does.
    pub fn new(stage: impl Into<StageId>, op: Op, microbatch: usize) -> Self {
        MicrobatchTask::new(stage, op, microbatch).into()
    }

    /// A send or receive along a skip edge, or the wait for one. `peer` is the stage at the other end.
    ///
    /// Text form: `0SEND_F2>3` sends stage 0's value to stage 3, which receives it with `3RECV_F2<0`; the gradient
    /// comes back with `3SEND_B2>0` and `0RECV_B2<3`. Waits have the same form: `0WAIT_SEND_F2>3`.
    ///
    /// # Panics
    /// Panics if the operation is neither a transfer nor the wait for one, or if `peer` is not 2 to
    /// [`Task::MAX_SKIP`] stages after the stage (`SEND_F`, `RECV_B`) or before it (`RECV_F`, `SEND_B`).
    pub fn skip(stage: impl Into<StageId>, op: Op, microbatch: usize, peer: usize) -> Self {
        let stage = stage.into();
        let span = if op.is_towards_next() { peer.checked_sub(stage.index()) } else { stage.index().checked_sub(peer) };
        let moves = op.is_transfer() || op.is_transfer_wait();
        let span = span.filter(|span| moves && (2..=Self::MAX_SKIP).contains(span));
        let Some(span) = span else { panic!("{op} of stage {stage} cannot reach stage {peer} past a neighbour") };
        let task = Self::new(stage, op, microbatch);
        Self { route: task.route | (span as u8) << 1, ..task }
    }

    /// A task of a stage as a whole.
    ///
    /// # Panics
    /// Panics if the operation belongs to a microbatch (see [`Op::has_microbatch`]).
    pub fn whole_stage(stage: impl Into<StageId>, op: Op) -> Self {
        assert!(!op.has_microbatch(), "{op} needs a microbatch");
        Self::pack(stage.into(), op, NO_MICROBATCH)
    }

    fn pack(stage: StageId, op: Op, microbatch: u32) -> Self {
        Self { microbatch, stage: stage.index, route: stage.route, op }
    }

    /// The stage it works on.
    pub fn stage(self) -> StageId {
        StageId { route: self.route & 1, index: self.stage }
    }

    /// The operation.
    pub fn op(self) -> Op {
        self.op
    }

    /// The microbatch within the stage's route, or `None` for an operation on the whole stage.
    pub fn microbatch(self) -> Option<usize> {
        (self.microbatch != NO_MICROBATCH).then_some(self.microbatch as usize)
    }

    /// This task as a [`MicrobatchTask`], or `None` for an operation on the whole stage.
    #[inline]
    pub fn of_microbatch(self) -> Option<MicrobatchTask> {
        (self.microbatch != NO_MICROBATCH).then_some(MicrobatchTask(self))
    }

    /// The wait for this start, with the same stage, microbatch and peer; `None` if it cannot be awaited.
    pub fn wait(self) -> Option<Self> {
        self.op.wait().map(|op| Self { op, ..self })
    }

    /// The start that this wait waits for; `None` if this is not a wait.
    pub fn awaits(self) -> Option<Self> {
        self.op.awaits().map(|op| Self { op, ..self })
    }

    /// Returns true if it is a transfer along a skip edge, or the wait for one.
    #[inline]
    pub fn is_skip(self) -> bool {
        self.route > 1
    }

    /// The stage at the other end of the skip edge, for a transfer along one or its wait.
    pub fn skip_peer(self) -> Option<StageId> {
        self.peer().filter(|_| self.is_skip())
    }

    /// The stage at the other end of a transfer, or of the transfer that a wait waits for. It may be the one after the
    /// last stage: see [`Placement::peer`](super::Placement::peer).
    pub(crate) fn peer(self) -> Option<StageId> {
        let moves = self.op.is_transfer() || self.op.is_transfer_wait();
        let span = u16::from(self.route >> 1).max(1);
        let index = if self.op.is_towards_next() { self.stage.checked_add(span) } else { self.stage.checked_sub(span) };
        index.filter(|_| moves).map(|index| StageId { route: self.route & 1, index })
    }

    /// The transfer at the other end of this one; `None` if this is no transfer.
    pub(crate) fn other_end(self) -> Option<Self> {
        let (op, peer) = (self.op.other_end()?, self.peer()?);
        Some(Self { op, stage: peer.index, ..self })
    }

    /// The stage whose output (or the gradient of it) a transfer moves, or the transfer that a wait waits for.
    pub(crate) fn output_of(self) -> Option<StageId> {
        if self.op.is_towards_next() { Some(self.stage()) } else { self.peer() }
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

crate::debug_as_text!(Task);

/// A [`Task`] that has a microbatch: a computation, a send or receive, or the wait for a send or receive.
///
/// Made from a plan's task by [`Task::of_microbatch`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Deref, Display, Into)]
pub struct MicrobatchTask(Task);

impl MicrobatchTask {
    /// A task of one microbatch.
    ///
    /// # Panics
    /// Panics if the operation has no microbatch (see [`Op::has_microbatch`]) or the number is above
    /// [`Task::MAX_MICROBATCHES`].
    pub fn new(stage: impl Into<StageId>, op: Op, microbatch: usize) -> Self {
        assert!(op.has_microbatch(), "{op} has no microbatch");
        assert!(microbatch <= Task::MAX_MICROBATCHES, "microbatch {microbatch} is out of range");
        Self(Task::pack(stage.into(), op, microbatch as u32))
    }

    /// The microbatch within the stage's route.
    #[inline]
    pub fn microbatch(self) -> usize {
        self.0.microbatch as usize
    }

    /// Another operation on the same microbatch, of this stage or another one.
    ///
    /// # Panics
    /// Panics if the operation has no microbatch.
    pub fn with(self, stage: StageId, op: Op) -> Self {
        Self::new(stage, op, self.microbatch())
    }

    /// The transfer that this wait waits for; `None` if this is not a wait.
    pub fn awaits(self) -> Option<Self> {
        self.0.awaits().map(Self)
    }
}

crate::debug_as_text!(MicrobatchTask);
