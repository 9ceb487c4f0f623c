//! Why there is no answer, and why a candidate was dropped.

use super::synthesis::SynthesisError;
use crate::cost::{PartitionError, ProfileError};
use crate::pass::PassError;
use crate::pass::overlap::OverlapError;
use crate::plan::{CheckError, PlanError};
use crate::schedule::ScheduleError;
use crate::simulate::SimulateError;

/// Why a candidate is none.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum DropReason {
    /// The family cannot be built at this size.
    #[error(transparent)]
    Family(#[from] ScheduleError),
    /// The layers cannot be cut like that.
    #[error(transparent)]
    Cut(#[from] PartitionError),
    /// A rank would hold too much.
    #[error("its fullest rank holds {peak:.4e} bytes, above the cap of {cap:.4e}")]
    OverCap {
        /// Bytes of the fullest rank.
        peak: f64,
        /// The cap.
        cap: f64,
        /// Seconds that it would take.
        makespan: f64,
    },
    /// No schedule was made.
    #[error(transparent)]
    Synthesis(#[from] SynthesisError),
    /// A pass refused the plan.
    #[error(transparent)]
    Pass(#[from] PassError),
    /// A pass over communication refused the plan.
    #[error(transparent)]
    Overlap(#[from] Box<OverlapError>),
    /// The plan does not pass the check.
    #[error(transparent)]
    Check(#[from] Box<CheckError>),
    /// The plan cannot be priced.
    #[error(transparent)]
    Simulate(#[from] SimulateError),
    /// The plan cannot have the model's edges past the next stage.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The costs are refused.
    #[error(transparent)]
    Profile(#[from] ProfileError),
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PlannerError {
    /// There is nothing to plan for.
    #[error("there is no workload; give at least one number of microbatches with its costs")]
    NoWorkload,
    /// A step needs a microbatch.
    #[error("a workload has no microbatch; a step needs at least one")]
    NoMicrobatch,
    /// There are no ranks, or more than can be numbered.
    #[error("{ranks} ranks; plans are made for 1 to 65535")]
    Ranks {
        /// Ranks asked for.
        ranks: usize,
    },
    /// A number is not an amount.
    #[error("`{field}` is {value}; it has to be zero or a positive number")]
    Amount {
        /// Which number.
        field: &'static str,
        /// The value, as text.
        value: String,
    },
    /// Every candidate was dropped.
    #[error("none of {candidates} candidates can be used; {}", least(*least_peak, first))]
    NothingFits {
        /// Candidates that were looked at.
        candidates: usize,
        /// Bytes of the leanest one, if it was only too large, and the cap.
        least_peak: Option<(f64, f64)>,
        /// Why the first one was dropped.
        first: String,
    },
    /// The links do not fit the ranks, or are no amounts.
    #[error(transparent)]
    Profile(#[from] ProfileError),
}

fn least(least_peak: Option<(f64, f64)>, first: &str) -> String {
    match least_peak {
        Some((peak, cap)) => {
            format!(
                "the leanest holds {peak:.4e} bytes on its fullest rank, above the cap of {cap:.4e}: use more ranks, smaller microbatches, or a larger cap"
            )
        }
        None => format!("the first: {first}"),
    }
}
