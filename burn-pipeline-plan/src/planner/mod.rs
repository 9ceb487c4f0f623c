//! The planner: which schedule, cut and microbatch size are fastest for a model on given ranks under a memory cap.
//!
//! 1. A [`Request`] holds the model's layers with their costs, for one or several microbatch sizes, and what may be
//!    chosen from. A measured profile of stages is a model too: [`Layers::of_profile`](crate::cost::Layers::of_profile).
//! 2. [`best_plan`] prices families x chunks x cuts x microbatch sizes x recomputation x passes, schedules made for the
//!    profile, and not pipelining at all, and gives a [`PlannerReport`]: the best as a checked plan, the Pareto front of
//!    seconds and bytes, what was dropped and why, where the best one's seconds go, and the analytic bound.
//! 3. [`Synthesis`] makes a schedule for a profile, beside the catalogue.
//!
//! Every candidate is lowered, checked and simulated as it would run.

mod alone;
mod answer;
mod bound;
mod error;
mod families;
mod ground;
mod passes;
mod price;
mod request;
mod search;
mod synthesis;

pub use answer::{BestPlan, Candidate, Choice, DroppedCandidate, PlannerReport, Strategy, TimeBreakdown};
pub use error::{DropReason, PlannerError};
pub use passes::PassChoice;
pub use request::{Cut, Recompute, Request, Workload};
pub use search::best_plan;
pub use synthesis::{Synthesis, SynthesisError, SynthesisedPlan};
