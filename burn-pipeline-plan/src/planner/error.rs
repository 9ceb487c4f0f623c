//! Why the planner finds no plan, and why it drops a candidate.

use crate::cost::{PartitionError, ProfileError};
use crate::plan::PlanError;
use crate::simulate::SimulateError;
use derive_more::Display;

/// Why a candidate cannot be used.
#[derive(Clone, PartialEq, Debug, Display)]
pub(super) enum DropReason {
    /// A rank would hold more than the cap.
    #[display("its fullest rank holds {peak:.4e} bytes, above the cap of {cap:.4e}")]
    OverCap { peak: f64, cap: f64, makespan: f64 },
    /// Its plan cannot be made, checked or simulated, or its costs are not valid; with the error's message.
    Refused(String),
}

impl<E: std::error::Error> From<E> for DropReason {
    fn from(error: E) -> Self {
        DropReason::Refused(error.to_string())
    }
}

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
    /// `what`, a candidate or a synthesised plan, would have more forwards over all stages than fit in memory.
    #[error("{forwards} forwards over all stages: {what} has at most {most}; use fewer, larger microbatches")]
    TooLong { what: &'static str, forwards: usize, most: usize },
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

/// Refuses a plan with more than `most` forwards over all stages.
pub(super) fn refuse_long(what: &'static str, forwards: usize, most: usize) -> Result<(), PlannerError> {
    if forwards > most { Err(PlannerError::TooLong { what, forwards, most }) } else { Ok(()) }
}

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
