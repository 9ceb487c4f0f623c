//! The errors of [`Plan::check`](crate::plan::Plan::check), each with its place and the surrounding part of the
//! grid.

use super::options::Transport;
use crate::plan::action::Action;
use crate::plan::stage_id::StageId;
use crate::plan::task::Task;
use crate::plan::waiting::{Waiting, listed};

/// Why a plan cannot run. `rank` and `step` (the index of the cell in the rank's row, counting idle cells) are the
/// place, `action` is the cell, and `task` the faulty part of a fused cell. If something is missing, `step` is the
/// end of the row.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "rank, step, action, task and grid mean the same in every variant")]
pub enum CheckError {
    /// The placement does not have the stage.
    #[error(
        "rank {rank}, step {step}: {action} names a stage that the placement does not have; \
         it has {stages} stages per route and {routes} routes\n{grid}"
    )]
    NoSuchStage { rank: usize, step: usize, action: Action, stages: usize, routes: usize, grid: String },
    /// The stage is placed on another rank.
    #[error(
        "rank {rank}, step {step}: {action} belongs on rank {placed}, which holds the stage; \
         move it there or change the placement\n{grid}"
    )]
    WrongRank { rank: usize, step: usize, action: Action, placed: usize, grid: String },
    /// The microbatch number is not below the route's count.
    #[error(
        "rank {rank}, step {step}: {action} is beyond the route's {microbatches} microbatches, \
         which count from 0\n{grid}"
    )]
    NoSuchMicrobatch { rank: usize, step: usize, action: Action, microbatches: usize, grid: String },
    /// A fused cell is not a forward and then a backward of another stage or microbatch. `W` counts as a backward
    /// only where it is the whole one ([`Plan::first_trained`](crate::plan::Plan::first_trained)).
    #[error(
        "rank {rank}, step {step}: {action} must fuse a forward with a backward (B or I) \
         of another stage or microbatch; split it\n{grid}"
    )]
    NotFusible { rank: usize, step: usize, action: Action, grid: String },
    /// A task computes or moves a gradient of a stage's input, and no earlier stage trains.
    #[error(
        "rank {rank}, step {step}: {task} has no use, since training begins at stage {first}: {}\n{grid}",
        unused(*task, *first)
    )]
    UnusedGradient { rank: usize, step: usize, action: Action, task: Task, first: usize, grid: String },
    /// A task occurs twice.
    #[error("rank {rank}, step {step}: {task} has already run at step {first}; remove one of the two\n{grid}")]
    Duplicate { rank: usize, step: usize, action: Action, task: Task, first: usize, grid: String },
    /// A whole backward and a split one of the same stage and microbatch.
    #[error(
        "rank {rank}, step {step}: {task} repeats the backward of step {first} in the other form; \
         write either B, or I and W\n{grid}"
    )]
    BothBackwards { rank: usize, step: usize, action: Action, task: Task, first: usize, grid: String },
    /// A task precedes a task on its own rank that it needs. If `needs` is a `B`, an `I` is accepted too.
    #[error("rank {rank}, step {step}: {task} needs {needs} earlier in the row\n{grid}")]
    Unmet { rank: usize, step: usize, action: Action, task: Task, needs: Task, grid: String },
    /// A wait comes after a use of its result.
    #[error(
        "rank {rank}, step {step}: {task} comes after {user} (step {first}), which uses its result; \
         move the wait before it\n{grid}"
    )]
    LateWait { rank: usize, step: usize, action: Action, task: Task, user: Task, first: usize, grid: String },
    /// More sent payloads are held until their waits than the cap allows.
    #[error(
        "rank {rank}, step {step}: {action} raises sent payloads not yet waited for to {held}, \
         above the cap of {cap}; wait for an earlier send first\n{grid}"
    )]
    SentCap { rank: usize, step: usize, action: Action, held: usize, cap: usize, grid: String },
    /// A required task is missing. If `task` is a `B`, `I` and `W` are accepted too.
    #[error("rank {rank} never runs {task}; insert it\n{grid}")]
    Missing { rank: usize, step: usize, task: Task, grid: String },
    /// A send or receive where the value does not cross ranks.
    #[error(
        "rank {rank}, step {step}: {action} moves nothing: {}; remove it\n{grid}",
        neighbour.map_or("the model ends there".to_owned(), |n| format!("stage {n} is on the same rank"))
    )]
    NeedlessTransfer { rank: usize, step: usize, action: Action, neighbour: Option<StageId>, grid: String },
    /// A send or receive along a skip edge that the plan does not have.
    #[error(
        "rank {rank}, step {step}: {action} moves a value along an edge that the plan does not have; \
         remove it, or add the edge with `Plan::with_skips`\n{grid}"
    )]
    NoSuchSkip { rank: usize, step: usize, action: Action, grid: String },
    /// A plan with two routes is vocabulary parallel.
    #[error(
        "rank {rank}, step {step}: {action} is vocabulary parallel, which needs a placement with one route; \
         this one has two\n{grid}"
    )]
    VocabularyRoutes { rank: usize, step: usize, action: Action, grid: String },
    /// An operation of the head does not name the last stage, or one of the embedding does not name the first.
    #[error(
        "rank {rank}, step {step}: {action} must name stage {stage}, \
         which its layer follows (head) or precedes (embedding)\n{grid}"
    )]
    VocabularyStage { rank: usize, step: usize, action: Action, stage: StageId, grid: String },
    /// A gradient of a piece in a plan without backwards.
    #[error("rank {rank}, step {step}: {action} is for a gradient, but the plan has no backward; remove it\n{grid}")]
    NoBackward { rank: usize, step: usize, action: Action, grid: String },
    /// Two ranks start the collectives of all ranks in different orders. `first` is the lower rank's.
    #[error(
        "rank {rank}, step {step}: starts {task} as collective number {position}, where rank {first_rank} starts \
         {first} (its step {first_step}); use the same order on all ranks\n{grid}"
    )]
    CollectiveOrder {
        rank: usize,
        step: usize,
        task: Task,
        position: usize,
        first_rank: usize,
        first: Task,
        first_step: usize,
        grid: String,
    },
    /// The two ends of a channel disagree on the order.
    #[error(
        "rank {rank}, step {step}: receives {received} as number {position} from rank {from}, which sends {sent} \
         then (its step {sent_step}); use the same order at both ends\n{grid}"
    )]
    ChannelOrder {
        rank: usize,
        step: usize,
        received: Task,
        from: usize,
        sent: Task,
        sent_step: usize,
        position: usize,
        grid: String,
    },
    /// Ranks wait for each other in a cycle: each needs a task of the next one, and the last a task of the first.
    #[error(
        "deadlock under {}: {}; reorder these rows\n{grid}",
        transport.map_or("any transport".to_owned(), |t| t.to_string()), listed(cycle)
    )]
    Deadlock { transport: Option<Transport>, cycle: Vec<Waiting>, grid: String },
    /// A stage computes, or is resharded, while its parameters are not gathered.
    #[error(
        "rank {rank}, step {step}: {task} needs its stage's parameters, which are sharded; put {} before it\n{grid}",
        format_args!("{}UNSHARD", task.stage())
    )]
    Sharded { rank: usize, step: usize, action: Action, task: Task, grid: String },
    /// An unsharded stage is unsharded again.
    #[error(
        "rank {rank}, step {step}: {action} gathers parameters that are already gathered; \
         remove it, or put a RESHARD before it\n{grid}"
    )]
    UnshardedTwice { rank: usize, step: usize, action: Action, grid: String },
    /// A stage is unsharded, but computes nothing before it is resharded or the row ends.
    #[error(
        "rank {rank}, step {step}: {action} gathers parameters that no F, B, I or W of the stage uses \
         before they are released or the row ends; remove it and its RESHARD\n{grid}"
    )]
    UnusedUnshard { rank: usize, step: usize, action: Action, grid: String },
    /// Gradients are reduced before all of them are computed.
    #[error(
        "rank {rank}, step {step}: {action} comes after {done} of {microbatches} weight gradients of its stage; \
         move it after the last\n{grid}"
    )]
    ReducedEarly { rank: usize, step: usize, action: Action, done: usize, microbatches: usize, grid: String },
    /// More activations are held than the cap allows.
    #[error(
        "rank {rank}, step {step}: {action} raises live activations to {live} rank-microbatches, \
         above the cap of {cap}; use a schedule that holds fewer\n{grid}"
    )]
    ActivationCap { rank: usize, step: usize, action: Action, live: f64, cap: f64, grid: String },
    /// More unused received payloads are held than the cap allows.
    #[error(
        "rank {rank}, step {step}: {action} raises received and unused payloads to {held}, \
         above the cap of {cap}; receive later\n{grid}"
    )]
    ReceivedCap { rank: usize, step: usize, action: Action, held: usize, cap: usize, grid: String },
    /// A cap on received payloads was given for an unlowered plan, which has no receives.
    #[error("a cap of {cap} received payloads can only be checked in a plan with transfers; insert them first")]
    ReceivedCapUnlowered { cap: usize },
}

crate::debug_as_text!(CheckError);

/// What to do about a gradient without a use.
fn unused(task: Task, first: usize) -> String {
    match task.op().is_backward() && task.stage().index() == first {
        true => format!("write {}W, or give the stages before it their backwards", task.stage()),
        false => "remove it, or give the stages from there on their backwards".to_owned(),
    }
}

impl CheckError {
    /// The rank and step of the fault, for [`Plan::grid_marked`](crate::plan::Plan::grid_marked); for a deadlock,
    /// the first of its cycle. `None` if the fault is in the options.
    pub fn place(&self) -> Option<(usize, usize)> {
        macro_rules! place {
            ($($located:ident)+) => {
                match self {
                    $(Self::$located { rank, step, .. })|+ => Some((*rank, *step)),
                    Self::Deadlock { cycle, .. } => cycle.first().map(|waiting| (waiting.rank, waiting.step)),
                    Self::ReceivedCapUnlowered { .. } => None,
                }
            };
        }
        place!(
            NoSuchStage WrongRank NoSuchMicrobatch NotFusible UnusedGradient Duplicate BothBackwards Unmet LateWait
            SentCap Missing NeedlessTransfer NoSuchSkip VocabularyRoutes VocabularyStage NoBackward CollectiveOrder
            ChannelOrder Sharded UnshardedTwice UnusedUnshard ReducedEarly ActivationCap ReceivedCap
        )
    }
}
