//! Why the synthesis makes no plan.

use crate::cost::ProfileError;
use crate::plan::PlanError;
use crate::simulate::SimulateError;

/// Why the synthesis makes no plan.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SynthesisError {
    /// There is not one microbatch count for each route, or there is no microbatch.
    #[error("{counts:?} microbatches for {routes} routes; give one count a route, and at least one microbatch")]
    Microbatches {
        /// Counts given.
        counts: Vec<usize>,
        /// Routes of the placement.
        routes: usize,
    },
    /// No order was found that keeps every rank under the cap.
    #[error(
        "no order was found that holds at most {cap} bytes a rank: one microbatch at a time, or its messages, may need more; raise the cap or use more ranks"
    )]
    DoesNotFit {
        /// The cap.
        cap: f64,
    },
    /// The profile does not fit the placement.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The rows do not make a plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The plan cannot be simulated.
    #[error(transparent)]
    Simulate(#[from] SimulateError),
}
