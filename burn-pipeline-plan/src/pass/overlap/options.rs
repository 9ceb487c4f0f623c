//! The passes by name, and their budgets.

use crate::named::named;
use crate::simulate::SimulateOptions;

named! {
    /// A pass over the communication of a plan.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub enum OverlapPass, name {
        /// Gives all ranks one order of messages, if their rows do not already follow one.
        OrderCommunication => "order-communication",
        /// Greedily schedules waits as late as possible.
        SinkWaits => "sink-waits",
        /// Greedily schedules starts as early as possible.
        RaiseCommunication => "raise-communication",
        /// Does both, then fills the seconds of each start with computations, those needed soonest first.
        ReorderCompute => "reorder-compute",
        /// Moves waits later, swap by swap, while something is exposed and memory allows it.
        SinkWaitsIteratively => "sink-waits-iteratively",
        /// Moves starts earlier, swap by swap, while something is exposed and memory allows it.
        ReorderCommunication => "reorder-communication",
    }
}

impl OverlapPass {
    /// The passes to run by default.
    pub const USUAL: [OverlapPass; 3] =
        [OverlapPass::ReorderCompute, OverlapPass::SinkWaitsIteratively, OverlapPass::ReorderCommunication];

    /// The pass of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        OverlapPass::ALL.into_iter().find(|pass| pass.name() == name)
    }

    /// Returns true if it places all cells of a row at once, within a reach.
    pub(super) fn is_greedy(self) -> bool {
        matches!(self, OverlapPass::SinkWaits | OverlapPass::RaiseCommunication | OverlapPass::ReorderCompute)
    }
}

/// The budgets of the passes, and the criteria for their results.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct OverlapOptions {
    /// How steps are simulated. Plans are checked for the same transport.
    pub simulate: SimulateOptions,
    /// The bytes that a rank may hold beyond its peak under the original plan.
    pub extra_bytes: f64,
    /// The additional share of that peak that it may hold beyond it: 0.1 for a tenth more.
    pub extra_share: f64,
    /// Prefetch distance: the most computations that a cell may pass.
    pub reach: usize,
    /// The most cells that may move together with a start or a wait; with 0 it moves alone.
    pub group: usize,
    /// A start counts as hidden once computation covers its seconds times `1 + margin`.
    pub margin: f64,
    /// If true, passes use time estimates. If false, only order, data and memory limit the moves: see
    /// [`overlap`](super). For profiles with bytes only, or without costs.
    pub estimates: bool,
}

impl Default for OverlapOptions {
    /// No extra memory, a reach of 8 computations, groups of up to 4 more cells, no margin, decisions by estimates.
    fn default() -> Self {
        let simulate = SimulateOptions::default();
        let (extra_bytes, extra_share, margin) = (0.0, 0.0, 0.0);
        Self { simulate, extra_bytes, extra_share, reach: 8, group: 4, margin, estimates: true }
    }
}
