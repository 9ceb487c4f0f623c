//! The passes by name, their budgets, and why a plan is refused.

use crate::cost::ProfileError;
use crate::plan::{Action, CheckError};
use crate::simulate::{SimulateError, SimulateOptions};

/// A pass over the communication of a plan.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum OverlapPass {
    /// Gives all ranks one order of messages, where their rows follow none.
    OrderCommunication,
    /// Greedily schedules waits as late as possible.
    SinkWaits,
    /// Greedily schedules starts as early as possible.
    RaiseCommunication,
    /// Both, and fills the time that each start takes with computations, those that are needed soonest first.
    ReorderCompute,
    /// Moves waits down swap by swap, as long as something is exposed and memory allows.
    SinkWaitsIteratively,
    /// Moves starts up swap by swap, as long as something is exposed and memory allows.
    ReorderCommunication,
}

impl OverlapPass {
    /// All passes.
    pub const ALL: [OverlapPass; 6] = [
        OverlapPass::OrderCommunication,
        OverlapPass::SinkWaits,
        OverlapPass::RaiseCommunication,
        OverlapPass::ReorderCompute,
        OverlapPass::SinkWaitsIteratively,
        OverlapPass::ReorderCommunication,
    ];

    /// What [`overlap`] runs where nothing else is asked for.
    pub const USUAL: [OverlapPass; 3] =
        [OverlapPass::ReorderCompute, OverlapPass::SinkWaitsIteratively, OverlapPass::ReorderCommunication];

    /// Its name in reports and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            OverlapPass::OrderCommunication => "order-communication",
            OverlapPass::SinkWaits => "sink-waits",
            OverlapPass::RaiseCommunication => "raise-communication",
            OverlapPass::ReorderCompute => "reorder-compute",
            OverlapPass::SinkWaitsIteratively => "sink-waits-iteratively",
            OverlapPass::ReorderCommunication => "reorder-communication",
        }
    }

    /// The pass of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        OverlapPass::ALL.into_iter().find(|pass| pass.name() == name)
    }

    /// Does it place all cells of a row at once, within a reach?
    pub(super) fn is_greedy(self) -> bool {
        matches!(self, OverlapPass::SinkWaits | OverlapPass::RaiseCommunication | OverlapPass::ReorderCompute)
    }
}

/// Budgets, and how results are judged.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct OverlapOptions {
    /// How steps are simulated; its transport is also the one that plans are checked for.
    pub simulate: SimulateOptions,
    /// Bytes that a rank may hold beyond its peak with the plan given.
    pub extra_bytes: f64,
    /// Prefetch distance: the most computations that a start (or, to hide one, a wait or a computation) may pass.
    pub reach: usize,
    /// The most cells that may go along with a start or a wait; 0 lets nothing go along.
    pub group: usize,
    /// Computation beyond what a start takes, as a share of that, for which starts still rise and waits sink.
    pub margin: f64,
    /// After every swap, count memory anew and compare: a debugging aid, quadratic in the plan.
    pub recount: bool,
}

impl Default for OverlapOptions {
    /// No extra memory, 8 computations, groups of 4 cells beside the first, no margin.
    fn default() -> Self {
        Self { simulate: SimulateOptions::default(), extra_bytes: 0.0, reach: 8, group: 4, margin: 0.0, recount: false }
    }
}

/// Why a plan cannot be worked on.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum OverlapError {
    /// Values that cross ranks are not sent in writing, so there is nothing to move.
    #[error("the plan is not lowered; run `insert_transfers` first")]
    NotLowered,
    /// The plan given cannot be run under the transport of the options.
    #[error(transparent)]
    Check(#[from] Box<CheckError>),
    /// The plan given cannot be simulated.
    #[error(transparent)]
    Simulate(#[from] SimulateError),
    /// The profile does not fit the plan.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// Memory kept up to date differs from a recount: a fault of this library.
    #[error(
        "rank {rank}: after {action} was passed, memory kept up to date differs from a recount; please report the plan"
    )]
    Recount {
        /// The rank.
        rank: usize,
        /// The cell that was passed last.
        action: Action,
    },
}
