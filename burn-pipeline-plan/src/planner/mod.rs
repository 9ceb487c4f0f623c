//! The planner: finds the fastest schedule, cut and number of microbatches for a model on given ranks under a memory
//! cap.
//!
//! 1. A [`Request`] holds the model's layers with their costs, for one or several numbers of microbatches, and what the
//!    planner may choose from. The stages of a measured profile are layers too, see
//!    [`Layers::of_profile`](crate::cost::Layers::of_profile).
//! 2. [`best_plan`] prices schedules x chunks x cuts x numbers of microbatches x recomputation x passes, synthesised
//!    schedules, and plans without a pipeline. Every candidate is lowered, checked and simulated as it would run.
//!    Two requests add candidates: vocabulary parallel ([`Request::with_vocabulary_parallel`]), and tensor-parallel
//!    groups of one size or of different sizes ([`Request::with_tensor_groups`]).
//! 3. The [`PlannerReport`] has the best plan, checked, with a breakdown of its seconds; all candidates with the Pareto
//!    front of seconds and bytes; the dropped candidates with their reasons; and a lower bound.
//! 4. [`Synthesis`] makes a schedule for a profile. It works without the planner too.
//!
//! Reading order: `request`, `report`, `search`, `layout`, `alike`, `mixed`, `unpipelined`, `job`, `price`, then
//! `synthesis`.

mod alike;
mod bound;
mod error;
mod job;
mod layout;
mod mixed;
mod passes;
mod price;
mod report;
mod request;
mod schedules;
mod search;
mod synthesis;
mod unpipelined;

pub use error::PlannerError;
pub use passes::PassChoice;
pub use report::{Candidate, PlannerReport, Strategy, TimeBreakdown};
pub use request::{Cut, Recompute, Request, Workload};
pub use search::best_plan;
pub use synthesis::{Synthesis, SynthesisedPlan};
