//! Why the planner finds no plan, and why it drops a candidate.

use crate::cost::{PartitionError, ProfileError};
use crate::pass::PassError;
use crate::plan::{CheckError, PlanError};
use crate::schedule::ScheduleError;
use crate::simulate::SimulateError;

/// Why a candidate cannot be used.
#[derive(Clone, PartialEq, thiserror::Error)]
pub(super) enum DropReason {
    /// The schedule cannot be built at this size.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// The layers cannot be cut this way.
    #[error(transparent)]
    Cut(#[from] PartitionError),
    /// A rank would hold more than the cap.
    #[error("its fullest rank holds {peak:.4e} bytes, above the cap of {cap:.4e}")]
    OverCap { peak: f64, cap: f64, makespan: f64 },
    /// The synthesis made no schedule.
    #[error(transparent)]
    Synthesis(#[from] PlannerError),
    /// A pass refused the plan.
    #[error(transparent)]
    Pass(#[from] PassError),
    /// The plan does not pass the check.
    #[error(transparent)]
    Check(#[from] Box<CheckError>),
    /// The plan cannot be simulated.
    #[error(transparent)]
    Simulate(#[from] SimulateError),
    /// The model's skip edges do not fit the plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The costs are not valid.
    #[error(transparent)]
    Profile(#[from] ProfileError),
}

crate::debug_as_text!(DropReason);

/// Why the planner finds no plan.
#[derive(Clone, PartialEq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum PlannerError {
    /// The request has no workload.
    #[error("there is no workload; give at least one number of microbatches with its costs")]
    NoWorkload,
    /// A workload has no microbatch.
    #[error("a workload has no microbatch; a step needs at least one")]
    NoMicrobatch,
    /// There are no ranks, or more than a plan can have.
    #[error("{ranks} ranks; plans are made for 1 to 65535")]
    Ranks { ranks: usize },
    /// A number is negative, infinite or NaN.
    #[error("`{field}` is {value}; it has to be zero or a positive number")]
    Amount { field: &'static str, value: String },
    /// Every candidate was dropped. `least_peak` has the lowest peak of the candidates above the cap, and the cap;
    /// `first` says why the first candidate was dropped.
    #[error("none of {candidates} candidates can be used; {}", least(*least_peak, first))]
    NothingFits { candidates: usize, least_peak: Option<(f64, f64)>, first: String },
    /// A synthesis was not given one microbatch count for each route, or no microbatch.
    #[error("{counts:?} microbatches for {routes} routes; give one count per route, and at least one microbatch")]
    Counts { counts: Vec<usize>, routes: usize },
    /// A synthesis found no order that keeps every rank under the cap.
    #[error(
        "no order was found that holds at most {cap} bytes per rank: \
         one microbatch at a time, or its messages, may need more; raise the cap or use more ranks"
    )]
    NoOrderFits { cap: f64 },
    /// The layers do not fit tensor-parallel groups, or a parallel vocabulary.
    #[error(transparent)]
    Layers(#[from] PartitionError),
    /// The costs or links are not valid, or do not fit the placement.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The rows of a synthesis do not make a plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The plan of a synthesis cannot be simulated.
    #[error(transparent)]
    Simulate(#[from] SimulateError),
}

crate::debug_as_text!(PlannerError);

fn least(least_peak: Option<(f64, f64)>, first: &str) -> String {
    match least_peak {
        Some((peak, cap)) => {
            format!(
                "the leanest holds {peak:.4e} bytes on its fullest rank, above the cap of {cap:.4e}: \
                 use more ranks, smaller microbatches, or a larger cap"
            )
        }
        None => format!("the first: {first}"),
    }
}
