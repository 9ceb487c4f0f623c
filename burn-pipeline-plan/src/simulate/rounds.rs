//! The collectives of a spread vocabulary: who has started each, and when it was over.

use super::messages::NEVER;
use crate::cost::Costs;
use crate::plan::spread::Spread;
use crate::plan::{Op, Plan};

/// One collective.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    /// Ranks that have started it.
    pub(super) started: usize,
    /// When the last of them did.
    pub(super) last: f64,
    /// When it began and when it was over; NaN before.
    pub(super) begun: f64,
    pub(super) over: f64,
}

/// All collectives of a simulation.
#[derive(Clone, Debug)]
pub(super) struct Rounds {
    pub(super) spread: Spread,
    pub(super) rounds: Vec<Round>,
    /// Seconds of each kind, in the order of the kinds' numbers.
    pub(super) seconds: [f64; 4],
    /// When the communicator is free.
    pub(super) free: f64,
}

impl Rounds {
    pub(super) fn new(plan: &Plan, costs: &Costs<'_>) -> Self {
        let spread = Spread::of(plan);
        let kinds = [Op::BroadcastHidden, Op::ReduceHead, Op::ReduceEmbedding, Op::BroadcastGradient];
        let round = Round { started: 0, last: 0.0, begun: NEVER, over: NEVER };
        let seconds = kinds.map(|op| costs.collective_seconds(op));
        Self { spread, rounds: vec![round; spread.collectives()], seconds, free: 0.0 }
    }
}
