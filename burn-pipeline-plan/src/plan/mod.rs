//! Plans: a schedule written down as data.
//!
//! A [`Plan`] says which [`Action`]s each rank runs, and in what order. Nothing else decides order: plans are built by
//! [`schedule`](crate::schedule), rewritten by [`pass`](crate::pass), proved by [`Plan::check`], priced by
//! [`simulate`](crate::simulate), drawn by [`trace`](crate::trace), and run by the crate `burn-pipeline`.
//!
//! A plan is *unlowered* when it holds compute actions alone: a value is there for the next stage as soon as it is
//! computed, on whatever rank. A plan is *lowered* when every send and receive is an action too;
//! [`Plan::with_transfers`](crate::plan::Plan::with_transfers) lowers it.
//!
//! A send, a receive, `UNSHARD` or `REDUCE_GRAD` may have a wait of its own (`WAIT_...`) later in its row. Then the
//! action only starts the operation, the actions between the two run beside it, and the rank stops at the wait until
//! the operation has ended. Without a wait, a send or receive ends with its cell, parameters are awaited where they are
//! used, and a reduction ends with the step. [`Plan::with_waits`](crate::plan::Plan::with_waits) writes waits down.
//!
//! In a plan that spreads the vocabulary, every rank has a piece of the head and of the embedding
//! ([`Plan::with_vocabulary`](crate::plan::Plan::with_vocabulary)). Their operations stand in every rank's row and name the
//! last stage (head) or the first one (embedding): `7S3` is the rank's own piece of the head behind stage 7. A collective of
//! all ranks starts at its cell and is awaited where it is used.
//!
//! Files in reading order: `op`, `stage_id`, `task`, `action` (what one cell says), `placement`, `skip_edge` and `skips`, `rows` (the
//! [`Plan`]), `error`, `text`, `csv`, `json`, `grid` (its written forms), `edges`, `waits`, `spread`, `waiting` (what passes, checks
//! and the simulator share), `check` (the proof). Names and text follow PyTorch's `torch.distributed.pipelining` (`_Action`,
//! `pipeline_order`).

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
pub(crate) mod spread;
mod stage_id;
mod task;
mod text;
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
