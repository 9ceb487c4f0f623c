//! The check of the collectives inside a stage's computations: those of its tensor-parallel group and of its
//! data-parallel replicas, together with the transfers of a [checked](crate::plan::Plan::check) plan.
//!
//! A *holder* of a stage is a rank of the job that runs the stage: one for each replica and group member. The job
//! is a grid: each rank of the plan stands for `replicas x members` holders, which all run that rank's row. A
//! transfer of the plan is a set of transfers between holders: each holder receives from some holders of the
//! sending rank, and all of these send in the same cell. Each computation also has a list of collectives that the
//! holder calls in it.
//!
//! Guarantees: [`CheckedPlan::check_collectives`](super::CheckedPlan::check_collectives) is exact. If it returns
//! `Ok`, every holder of every stage reaches the end of its row; if it returns an error, some holder does not. This
//! assumes that a collective ends once all its ranks have called it in the same task, and that every list is given.
//! A missing list is assumed to match the others.
//!
//! 1. *One computation* ([`lists`](super::lists)): its holders run their lists against each other. A collective
//!    that can run stays possible whatever other holders do, so one order of running suffices. A holder that cannot
//!    reach the end of its list waits for a holder that has ended or is at another collective of the same ranks, or
//!    else, as there are finitely many, holders wait in a cycle.
//! 2. *Sufficient*: take the order of cells in which the plan's ranks reach the ends of their rows, and let all
//!    holders of a rank run each cell when the rank does. A transfer finds its other end started, as in the plan.
//!    In a computation all holders of the stage are in the same task, and step 1 takes them to its end.
//! 3. *Necessary*: a collective belongs to one task. A holder that cannot reach the end of its list in step 1
//!    cannot in the grid either, where holders run the same lists and wait for more.
//! 4. Lists are the same for all microbatches, so each of `F`, `I`, `W` and `B` (`I`, then `W`) of a stage is run
//!    once, at its first cell. A fused cell counts as its two tasks.

use crate::plan::action::Action;
use crate::plan::op::Op;
use crate::plan::stage_id::StageId;
use crate::plan::task::Task;
use derive_more::Display;
use serde::{Deserialize, Serialize};

/// The ranks that run a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Among {
    /// The members of the stage's tensor-parallel group, within one replica.
    Members,
    /// The data-parallel replicas of the stage, at one member index.
    Replicas,
}

/// A collective that a holder of a stage calls. Two are the same if both fields are equal.
#[derive(Clone, Debug, Display, PartialEq, Eq, Serialize, Deserialize)]
#[display("`{what}`")]
pub struct Collective {
    /// The ranks that run it.
    pub among: Among,
    /// A description with everything that its ranks must have in common: operation, axis, shape, element type.
    pub what: String,
}

/// The collectives that a holder calls in each computation of a stage, in order. `B` calls those of `I`, then those
/// of `W`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Collectives {
    /// In `F`.
    pub forward: Vec<Collective>,
    /// In `I`.
    pub input: Vec<Collective>,
    /// In `W`.
    pub weight: Vec<Collective>,
}

/// A stage with the collectives of all its holders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageCollectives {
    /// The stage.
    pub stage: StageId,
    /// The number of members of each replica.
    pub members: usize,
    /// One list per holder, replica by replica, members in order. `None` if unknown.
    pub holders: Vec<Option<Collectives>>,
}

/// A holder of a stage, and its position in the list of one computation.
#[derive(Clone, Debug, Display, PartialEq, Eq)]
#[display(
    "{} on member {member} of replica {replica}",
    collective.as_ref().map_or_else(|| format!("there is no number {number}"), |c| format!("number {number} is {c}"))
)]
pub struct Standing {
    /// The data-parallel replica.
    pub replica: usize,
    /// Its index in the tensor-parallel group.
    pub member: usize,
    /// The number of the collective in the computation's list, from 1.
    pub number: usize,
    /// The collective; `None` at the end of the list.
    pub collective: Option<Collective>,
}

/// Why holders of a stage would wait forever. `rank`, `step` and `action` are the first cell of the plan where they
/// do; `task` is its computation, with stage and microbatch.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum CollectiveError {
    /// Two holders call different collectives of the same ranks.
    #[error(
        "rank {rank}, step {step}, {action}: ranks of stage {} call different collectives in {}: \
         {first}, and {second}; {}",
        task.stage(), task.op(), advice(first, second)
    )]
    Differ { rank: usize, step: usize, action: Action, task: Task, first: Standing, second: Standing },
    /// Each holder waits for the next one, and the last for the first.
    #[error(
        "rank {rank}, step {step}, {action}: ranks of stage {} wait in a cycle in {}: {}; \
         call collectives of members and of replicas in the same order on all of them",
        task.stage(), task.op(), cycle.iter().map(Standing::to_string).collect::<Vec<_>>().join(", ")
    )]
    Cycle { rank: usize, step: usize, action: Action, task: Task, cycle: Vec<Standing> },
    /// The plan has no such stage, or the number of lists is not a multiple of `members`.
    #[error(
        "got {lists} lists of collectives for stage {stage}, with {members} members per replica; \
         give one list per holder, for a stage of the plan"
    )]
    Lists { stage: StageId, members: usize, lists: usize },
}

crate::debug_as_text!(CollectiveError);

/// What to do if these two differ.
fn advice(first: &Standing, second: &Standing) -> &'static str {
    match first.replica == second.replica {
        true => {
            "the members of a tensor-parallel group must call the same collectives in the same order, \
             with the same shapes"
        }
        false => {
            "replicas must call the same exchanges in the same order, with the same shapes: \
             if these depend on the number of samples, microbatches of all replicas need equally many"
        }
    }
}

impl Collectives {
    pub(super) fn of(&self, op: Op) -> Vec<&Collective> {
        match op {
            Op::Forward => self.forward.iter().collect(),
            Op::BackwardInput => self.input.iter().collect(),
            Op::BackwardWeight => self.weight.iter().collect(),
            Op::Backward => self.input.iter().chain(&self.weight).collect(),
            _ => Vec::new(),
        }
    }
}

impl StageCollectives {
    /// Returns true if any holder calls a collective in `op`.
    pub(super) fn meets(&self, op: Op) -> bool {
        self.holders.iter().flatten().any(|holder| !holder.of(op).is_empty())
    }
}
