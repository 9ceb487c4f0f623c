//! Vocabulary parallelism: which collective a task needs, and which task a collective needs.
//!
//! Follows Algorithm 2 of Yeung et al., Balancing Pipeline Parallelism with Vocabulary Parallelism, 2024
//! (arXiv:2411.05288), with one barrier per microbatch:
//!
//! ```text
//! IF on all ranks -> REDUCE_IF -> F of the first stage
//! F of the last stage -> BCAST_S -> S on all ranks -> REDUCE_S -> B of the last stage, and T on all ranks
//! B of the first stage -> BCAST_IB -> IB on all ranks
//! ```
//!
//! A collective starts on a rank at its cell, and ends on every rank some time after the last rank has started it.

use super::op::Op;
use super::rows::Plan;
use super::stage_id::StageId;
use super::task::MicrobatchTask;

/// The vocabulary-parallel layers of a plan.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct VocabularyLayers {
    /// The last stage, if the head after it is vocabulary parallel.
    pub(crate) head: Option<StageId>,
    /// The first stage, if the embedding before it is vocabulary parallel.
    pub(crate) embedding: Option<StageId>,
    /// True if the last stage is the first one that trains, so that its backward is `W` alone.
    ends_alone: bool,
    /// The number of microbatches of the route.
    microbatches: usize,
}

impl VocabularyLayers {
    /// The vocabulary-parallel layers of a plan.
    pub(crate) fn of(plan: &Plan) -> Self {
        if !plan.has_vocabulary() {
            return Self::default();
        }
        let has = |test: fn(Op) -> bool| plan.any_task(|task| task.op().is_vocabulary() && test(task.op()));
        Self {
            head: has(Op::is_of_head).then(|| StageId::new(plan.stages() - 1)),
            embedding: has(|op| !op.is_of_head()).then(|| StageId::new(0)),
            ends_alone: plan.trains_alone(StageId::new(plan.stages() - 1)),
            microbatches: plan.microbatches()[0],
        }
    }

    /// Returns true if no layer is vocabulary parallel.
    #[inline]
    pub(crate) fn is_nothing(self) -> bool {
        self.head.is_none() && self.embedding.is_none()
    }

    /// The stage that a vocabulary operation must name.
    pub(crate) fn stage_for(self, op: Op) -> Option<StageId> {
        if op.is_of_head() { self.head } else { self.embedding }
    }

    /// The collective that must end before a task can run.
    #[inline]
    pub(crate) fn awaited(self, task: MicrobatchTask) -> Option<MicrobatchTask> {
        let stage = task.stage();
        let collective = match task.op() {
            Op::HeadForward => Op::BroadcastHidden,
            Op::HeadBackward => Op::ReduceHead,
            Op::EmbeddingBackward => Op::BroadcastGradient,
            Op::Forward if self.embedding == Some(stage) => Op::ReduceEmbedding,
            Op::Backward | Op::BackwardInput if self.head == Some(stage) => Op::ReduceHead,
            Op::BackwardWeight if self.ends_alone && self.head == Some(stage) => Op::ReduceHead,
            _ => return None,
        };
        Some(task.with(stage, collective))
    }

    /// The task whose value a rank gives to a collective; it must precede the collective in the rank's row. It may
    /// be `B` where the plan has `I`. `None` for a rank that only receives; `holds` is true if the rank holds the
    /// collective's stage.
    pub(crate) fn given(self, collective: MicrobatchTask, holds: bool) -> Option<MicrobatchTask> {
        let op = match collective.op() {
            Op::BroadcastHidden if holds => Op::Forward,
            Op::BroadcastGradient if holds => Op::Backward,
            Op::ReduceHead => Op::HeadForward,
            Op::ReduceEmbedding => Op::EmbeddingForward,
            _ => return None,
        };
        Some(collective.with(collective.stage(), op))
    }

    /// A dense number for a collective, below [`VocabularyLayers::collectives`].
    #[inline]
    pub(crate) fn number(self, collective: MicrobatchTask) -> usize {
        (collective.op() as usize - Op::BroadcastHidden as usize) * self.microbatches + collective.microbatch()
    }

    /// The number of collectives, over all kinds and microbatches; 0 if no layer is vocabulary parallel.
    pub(crate) fn collectives(self) -> usize {
        if self.is_nothing() { 0 } else { Op::RANK_COLLECTIVES.len() * self.microbatches }
    }

    pub(crate) fn collective(self, number: usize) -> MicrobatchTask {
        let op = Op::RANK_COLLECTIVES[number / self.microbatches];
        let stage = self.stage_for(op).unwrap_or(StageId::new(0));
        MicrobatchTask::new(stage, op, number % self.microbatches)
    }
}
