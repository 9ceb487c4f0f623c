//! Setting a pipeline up and starting it.
//!
//! Read `builder` (what the user chooses), `start` (plan, links, threads), `job`
//! (what ranks in processes must have in common) and `rank` (how a thread builds its stages).

mod builder;
mod job;
mod rank;
mod start;

pub use builder::Builder;
