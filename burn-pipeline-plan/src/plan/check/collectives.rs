//! Collectives of the ranks that hold a stage together, and of its data-parallel replicas: they are met in one order, beside the
//! transfers of a plan that [`Plan::check`](crate::plan::Plan::check) has proved.
//!
//! Guarantees: [`CheckedPlan::check_collectives`](super::CheckedPlan::check_collectives) is exact. Every holder of every stage reaches the end of its row if it gives
//! `Ok`, and some holder does not if it gives an error, provided that a collective ends when all its ranks have come to it in the same
//! task, and that each of the lists is given. A list that is not given is taken for whatever the others need.
//!
//! The job is a grid: each rank of the plan stands for `replicas x members` holders, which all run that rank's row. A transfer of the plan is one
//! between holders: each receives from some holders of the sending rank, and all of them send with the same cell. A computation
//! is, besides, the list of collectives that the holder meets in it.
//!
//! 1. *One computation* ([`lists`](super::lists)): its holders run their lists against each other. A collective that can be carried out stays possible
//!    whatever other holders do, so one order of running is enough. Holders that cannot reach the end of their lists wait for one that has ended
//!    or stands at another collective of the same ranks, or else, as there are finitely many, in a circle.
//! 2. *Enough*: take the order of cells in which the plan's ranks reach the ends of their rows, and let all holders of a rank run each
//!    cell when the rank does. A transfer finds the other end started, as it does in the plan. In a computation all holders of the stage are in the
//!    same task, and step 1 takes them to its end.
//! 3. *Needed*: a collective is of one task. A holder that cannot reach the end of its list in step 1 does not reach it in the grid
//!    either, where holders do the same and wait for more.
//! 4. Lists are the same for all microbatches, so each of `F`, `I`, `W` and `B` (`I`, then `W`) of a stage is run once, at the
//!    first cell that has it. A fused cell counts as its two tasks.

use crate::plan::action::Action;
use crate::plan::op::Op;
use crate::plan::stage_id::StageId;
use crate::plan::task::Task;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The ranks that run a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Among {
    /// Those that hold the stage together (tensor parallelism), of one replica.
    Members,
    /// The data-parallel replicas of the stage, those with the same place among members.
    Replicas,
}

/// A collective that a holder of a stage meets. Two are the same if both fields are equal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Collective {
    /// The ranks that run it.
    pub among: Among,
    /// What it does, in words, with all that its ranks must have in common: axis, shape, element type.
    pub what: String,
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", self.what)
    }
}

/// The collectives that a holder meets in each computation of a stage, in order. A whole backward meets those of `I` and then those of `W`.
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
    /// Members of each replica.
    pub members: usize,
    /// One for each holder, replica by replica, members in order. `None` where nothing is known of them.
    pub holders: Vec<Option<Collectives>>,
}

/// A holder of a stage, and where it stands in the list of one computation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The data-parallel replica.
    pub replica: usize,
    /// Its place among the ranks that hold the stage together.
    pub member: usize,
    /// The number of the collective in the computation's list, from 1.
    pub number: usize,
    /// The collective; `None` at the end of the list.
    pub collective: Option<Collective>,
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { replica, member, number, collective } = self;
        match collective {
            Some(collective) => write!(f, "number {number} is {collective}")?,
            None => write!(f, "there is no number {number}")?,
        }
        write!(f, " on member {member} of replica {replica}")
    }
}

/// Why holders of a stage would wait for ever. `rank`, `step` and `action` are the first cell of the plan in which they do, `task` its
/// computation, with stage and microbatch.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum CollectiveError {
    /// Two holders come to different collectives of the same ranks.
    #[error(
        "rank {rank}, step {step}, {action}: holders of stage {} meet different collectives in {}: {first}, and {second}; {}",
        task.stage(), task.op(), advice(first, second)
    )]
    Differ { rank: usize, step: usize, action: Action, task: Task, first: Standing, second: Standing },
    /// Each holder waits for the next one, and the last for the first.
    #[error(
        "rank {rank}, step {step}, {action}: holders of stage {} wait in a circle in {}: {}; call collectives of members and of replicas in one order on all of them",
        task.stage(), task.op(), circle.iter().map(Standing::to_string).collect::<Vec<_>>().join(", ")
    )]
    Circle { rank: usize, step: usize, action: Action, task: Task, circle: Vec<Standing> },
    /// The plan has no such stage, or the number of lists is not one of whole replicas.
    #[error(
        "{lists} lists of collectives of stage {stage}, for replicas of {members} members each; give one of each holder of a stage that the plan has"
    )]
    Lists { stage: StageId, members: usize, lists: usize },
}

crate::debug_as_text!(CollectiveError);

/// What to do where these two differ.
fn advice(first: &Standing, second: &Standing) -> &'static str {
    match first.replica == second.replica {
        true => "the ranks that hold a stage must call the same collectives in the same order, with the same shapes",
        false => {
            "replicas must call the same exchanges in the same order, with the same shapes: where these depend on the number of samples, microbatches of all replicas need equally many"
        }
    }
}

impl Collectives {
    /// The list of a computation.
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
    /// Does any holder meet a collective in it?
    pub(super) fn meets(&self, op: Op) -> bool {
        self.holders.iter().flatten().any(|holder| !holder.of(op).is_empty())
    }
}
