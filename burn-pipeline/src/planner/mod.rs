//! The planner: which schedule, cut and microbatch size are fastest for a model on given ranks.
//!
//! [`Synthesis`] makes a schedule for a profile, beside the catalogue.

mod synthesis;

pub use synthesis::{Synthesis, SynthesisError, Synthesised};
