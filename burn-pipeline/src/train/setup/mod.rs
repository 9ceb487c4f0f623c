//! Setting a pipeline up and starting it.
//!
//! Read `builder` (what the user chooses; more of it in `step_options` and `group_options`), `start` (plan, links, threads), `job` (what ranks in processes must have in
//! common), `rank` (how a thread builds its stages) and `standby` (other stages for a pipeline that runs).

mod builder;
mod group_options;
mod job;
mod rank;
mod standby;
mod start;
mod step_options;

pub use builder::Builder;
pub(crate) use standby::{MoveError, Standby};
