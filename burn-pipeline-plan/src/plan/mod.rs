//! Plans: schedules written down as data.
//!
//! A [`Plan`] lists the [`Action`]s that each rank runs, in order. Nothing else determines the order. Plans are
//! built by [`schedule`](crate::schedule), rewritten by [`pass`](crate::pass), checked by [`Plan::check`], costed
//! by [`simulate`](crate::simulate), drawn by [`trace`](crate::trace), and run by the crate `burn-pipeline`.
//!
//! A plan is *unlowered* if it has only compute actions: a value is available to the next stage, on any rank, as
//! soon as it is computed. A plan is *lowered* if every send and receive is an action too;
//! [`Plan::with_transfers`](crate::plan::Plan::with_transfers) lowers a plan.
//!
//! A send, a receive, `UNSHARD` or `REDUCE_GRAD` may have its own wait (`WAIT_...`) later in its row. The action
//! then only starts the operation, the actions in between run concurrently with it, and the rank blocks at the wait
//! until the operation has completed. Without a wait, a send or receive completes in its cell, parameters are
//! awaited where they are used, and a reduction completes by the end of the step.
//! [`Plan::with_waits`](crate::plan::Plan::with_waits) adds waits.
//!
//! In a vocabulary-parallel plan, every rank has a piece of the head and of the embedding
//! ([`Plan::with_vocabulary`](crate::plan::Plan::with_vocabulary)). Their operations are in every rank's row and
//! name the last stage (head) or the first stage (embedding): if stage 7 is the last, `7S3` is the rank's own piece
//! of the head. A collective of all ranks starts at its cell and is awaited where its result is used.
//!
//! Files in reading order: `op`, `stage_id`, `task`, `action` (the contents of one cell); `placement`, `skip_edge`,
//! `skips`, `rows` (the [`Plan`]); `error`, `text`, `csv`, `json`, `grid` (its written forms); `edges`, `waits`,
//! `vocabulary`, `waiting` (shared by passes, checks and the simulator); `check` (the proof). Names and text follow
//! PyTorch's `torch.distributed.pipelining` (`_Action`, `pipeline_order`).

mod action;
mod check;
mod csv;
pub(crate) mod edges;
mod error;
mod grid;
mod json;
mod op;
mod placement;
mod rows;
mod skip_edge;
pub(crate) mod skips;
mod stage_id;
mod task;
mod text;
pub(crate) mod vocabulary;
pub(crate) mod waiting;
pub(crate) mod waits;

pub use action::Action;
pub use check::{
    Among, CheckError, CheckOptions, CheckedPlan, Collective, CollectiveError, Collectives, StageCollectives, Standing,
    Transport,
};
pub use error::PlanError;
pub use op::Op;
pub use placement::{Placement, PlacementKind};
pub use rows::Plan;
pub use skip_edge::SkipEdge;
pub use stage_id::StageId;
pub use task::{MicrobatchTask, Task};
pub use waiting::Waiting;
