//! Setting a pipeline up and starting it.
//!
//! Read `builder` (what the user chooses), `start` (plan, links, threads), `job` (what ranks in processes must have in
//! common), `rank` (how a thread builds its stages) and `standby` (other stages for a pipeline that runs).

mod builder;
mod job;
mod rank;
mod standby;
mod start;

pub use builder::Builder;
pub(crate) use standby::{MoveError, Standby};
