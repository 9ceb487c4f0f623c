//! Plans: a schedule written down as data.
//!
//! A [`Plan`] says, for each rank, which [`Action`]s it runs and in what order, and nothing else in this
//! library decides order: plans are built by [`schedule`](crate::schedule), rewritten by
//! [`pass`](crate::pass), proved by [`check`], priced by [`simulate`](crate::simulate), drawn by
//! [`trace`](crate::trace) and run by `execute`.
//!
//! A plan is *unlowered* when it holds compute actions alone (values appear on the other rank by magic), and
//! *lowered* once [`insert_transfers`](crate::pass::insert_transfers) has written down every send and receive.
//!
//! A send, a receive, `UNSHARD` or `REDUCE_GRAD` may be followed, later in its row, by its own wait (`WAIT_...`): then
//! it only starts there, what follows runs beside it, and the wait is where the rank stands until it is over. One
//! without a wait means what it says: a send or receive is over when its cell is, parameters are awaited where they
//! are used, a reduction at the end of the step. [`insert_waits`](crate::pass::insert_waits) writes waits down.
//!
//! The form follows PyTorch's `torch.distributed.pipelining` (`_Action`, `pipeline_order`).

mod action;
pub mod check;
mod csv;
pub(crate) mod edges;
pub mod grid;
mod json;
mod op;
mod placement;
mod rows;
pub(crate) mod skips;
mod stage_id;
mod task;
mod text;
pub(crate) mod waits;

pub use action::{Action, Tasks};
pub use check::{CheckError, CheckOptions, CheckedPlan, Transport};
pub use csv::PlanCsvError;
pub use op::Op;
pub use placement::{Placement, PlacementError, PlacementKind};
pub use rows::{Plan, PlanError};
pub use skips::{SkipEdge, SkipError};
pub use stage_id::StageId;
pub use task::{MicrobatchTask, Task};
pub use text::ParseActionError;
