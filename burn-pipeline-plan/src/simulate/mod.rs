//! The simulator: computes a timeline from a plan and its costs.
//!
//! - [`simulate`] reports the makespan, two bubble rates, when and why each rank idles, and memory over time. It takes
//!   lowered and unlowered plans.
//! - [`idle_periods`] finds the causes of idle time in a measured step.
//! - [`Bounds`] are lower bounds on the makespan of any order of the same work.
//! - [`unit_steps()`] counts steps as PyTorch's simulator does.
//!
//! Reading order: `report` (the outcome), `state`, `engine` (the loop), `needs`, `messages`, `transfers`,
//! `collectives`, `waits`, `vocabulary`, `memory`, `hold`.
//!
//! ```
//! use burn_pipeline_plan::cost::{Profile, UniformCosts};
//! use burn_pipeline_plan::schedule::{GPipe, Schedule, Size};
//! use burn_pipeline_plan::simulate::{SimulateOptions, simulate};
//!
//! let plan = GPipe.build(Size::new(4, 8))?;
//! let profile = Profile::uniform(plan.placement(), UniformCosts::new(1.0, 1.0, 1.0))?;
//! let step = simulate(&plan, &profile, &SimulateOptions::default())?;
//! assert_eq!(step.makespan, 33.0);
//! assert_eq!(step.bubble_rate_makespan(), 3.0 / 11.0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod bounds;
mod collectives;
mod engine;
mod error;
mod finish;
mod hold;
mod idle;
mod memory;
mod messages;
mod needs;
mod options;
mod report;
mod skips;
mod state;
mod transfers;
mod unit_steps;
mod validate;
mod vocabulary;
mod waits;

pub use bounds::Bounds;
pub use engine::simulate;
pub use error::SimulateError;
pub use idle::idle_periods;
pub use memory::MemoryPoint;
pub use options::SimulateOptions;
pub use report::{IdleCause, IdlePeriod, RankReport, Simulation};
pub use unit_steps::unit_steps;
