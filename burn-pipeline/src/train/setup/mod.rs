//! Configuring and starting a pipeline.
//!
//! Read `builder` (the user's choices; more in `step_options`, `group_options` and `layers`), `start` (plan, links,
//! threads), `job` (what ranks in processes must share) and `rank` (how a thread builds its stages).

mod builder;
mod group_options;
mod job;
mod layers;
mod rank;
mod start;
mod step_options;

pub use builder::Builder;
pub(crate) use rank::Blueprint;
