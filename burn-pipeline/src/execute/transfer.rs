//! Which message a transfer of the plan sends or receives, and which rank is at its other end.
//!
//! A value that crosses a stage boundary is identified by its transfer, even if both stages are on one rank and
//! nothing is sent: it then stays in the rank's own tables under the same header.

use crate::link::{Header, MessageKind};
use burn_pipeline_plan::plan::{MicrobatchTask, Op, Placement, Plan, StageId, Task};

/// A value that crosses a stage boundary.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transfer {
    /// What the value is: its receiving stage, its microbatch and its direction.
    pub(super) header: Header,
    /// The pipeline rank at the other end.
    pub(super) peer: usize,
    pub(super) peer_stage: StageId,
}

impl Transfer {
    /// The value that a `SEND_*` or `RECV_*` moves; `None` for other tasks and at the ends of a route.
    pub(super) fn of(placement: &Placement, task: Task) -> Option<Self> {
        let (sends, forward) = match task.op() {
            Op::SendForward => (true, true),
            Op::SendBackward => (true, false),
            Op::ReceiveForward => (false, true),
            Op::ReceiveBackward => (false, false),
            _ => return None,
        };
        let own = task.stage();
        let peer = match task.skip_peer() {
            Some(peer) => peer,
            None if sends == forward => placement.next(own)?,
            None => own.previous()?,
        };
        let (to, from) = if sends { (peer, own) } else { (own, peer) };
        let kind = match (task.is_skip(), forward) {
            (false, true) => MessageKind::Activation,
            (false, false) => MessageKind::Gradient,
            (true, true) => MessageKind::Skip { from: from.index() },
            (true, false) => MessageKind::SkipGradient { from: from.index() },
        };
        let header = Header { stage: to, microbatch: task.microbatch()?, kind };
        Some(Self { header, peer: placement.rank_of(peer), peer_stage: peer })
    }

    /// The transfer of the gradient that goes back for a `RECV_F`.
    pub(super) fn back(placement: &Placement, receive: Task) -> Option<Self> {
        Self::of(placement, along(receive.of_microbatch()?, Op::SendBackward, receive.skip_peer()))
    }
}

/// The transfer of a task's stage and microbatch: with the stage beside it, or along the skip edge to `peer`.
pub(super) fn along(task: MicrobatchTask, op: Op, peer: Option<StageId>) -> Task {
    match peer {
        Some(peer) => Task::skip(task.stage(), op, task.microbatch(), peer.index()),
        None => Task::new(task.stage(), op, task.microbatch()),
    }
}

/// The stages at the other ends of a stage's skip edges, in model order: of edges that end at it, or of those that
/// start at it.
pub(super) fn skip_peers(plan: &Plan, stage: StageId, incoming: bool) -> Vec<StageId> {
    let edges = plan.skips().iter();
    let ends = edges.filter_map(|edge| match incoming {
        true => (edge.to == stage.index()).then_some(edge.from),
        false => (edge.from == stage.index()).then_some(edge.to),
    });
    ends.map(|index| StageId::in_route(stage.route(), index)).collect()
}
