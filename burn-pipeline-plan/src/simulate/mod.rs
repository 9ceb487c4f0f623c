//! The simulator: a plan and its costs give a timeline.
//!
//! It reports the makespan, both bubble rates, why each rank idles and when, and memory over time, for lowered and
//! unlowered plans. [`Bounds`] says what no order could beat, and [`unit_steps`] counts steps as PyTorch does.
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
mod engine;
mod error;
mod finish;
mod memory;
mod needs;
mod report;
mod skips;
mod transfers;
mod unit_steps;
mod validate;
mod waits;

pub use bounds::{Bounds, forwards_without_bubble, memory_bubble};
pub use error::{Blocked, SimulateError};
pub use memory::MemoryPoint;
pub use report::{IdleCause, IdlePeriod, RankReport, Simulation};
pub use unit_steps::unit_steps;

use crate::cost::Profile;
use crate::plan::{Plan, Transport};
use finish::report_of;

/// How a lowered plan's transfers behave; an unlowered plan's values cross by themselves, and neither matters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SimulateOptions {
    /// What a message waits for.
    pub transport: Transport,
    /// Do transfers and collectives run beside computations (else they keep their ranks from computing)? What has a
    /// wait of its own always runs beside what stands before the wait.
    ///
    /// It changes times and not what is legal: a plan that deadlocks where a rank waits in its sends and receives is
    /// refused either way.
    pub overlap: bool,
}

impl Default for SimulateOptions {
    /// Rendezvous, with overlap: where transfers take no time, a lowered plan takes as long as an unlowered one.
    fn default() -> Self {
        Self { transport: Transport::Rendezvous, overlap: true }
    }
}

/// Simulates one step of a plan, lowered or not.
///
/// # Errors
/// [`SimulateError::Profile`] where the costs are about another number of stages; [`SimulateError::Foreign`] and
/// [`SimulateError::Sparse`] where the plan does not hold together; [`SimulateError::Deadlock`] where some rank can
/// never go on.
pub fn simulate(plan: &Plan, profile: &Profile, options: &SimulateOptions) -> Result<Simulation, SimulateError> {
    let costs = profile.costs(plan.placement())?;
    if options.overlap && plan.is_lowered() {
        engine::Engine::new(plan, costs, SimulateOptions { overlap: false, ..*options })?.run()?;
    }
    engine::Engine::new(plan, costs, *options)?.run()
}
