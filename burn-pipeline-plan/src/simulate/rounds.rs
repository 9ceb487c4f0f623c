//! The collectives of a parallel vocabulary: which ranks have started each, and when it ended.

use super::messages::NEVER;
use crate::cost::Costs;
use crate::plan::vocabulary::VocabularyLayers;
use crate::plan::{Op, Plan};

/// One collective.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    /// The number of ranks that have started it.
    pub(super) started: usize,
    /// The time at which the last of them started it.
    pub(super) last: f64,
    /// The times at which it began and ended; NaN before.
    pub(super) begun: f64,
    pub(super) over: f64,
}

/// All collectives of a simulation.
#[derive(Clone, Debug)]
pub(super) struct Rounds {
    pub(super) vocabulary: VocabularyLayers,
    pub(super) rounds: Vec<Round>,
    /// Seconds of each kind of collective, in the order of the kinds in `Op`.
    pub(super) seconds: [f64; 4],
    /// The time at which the communicator is free.
    pub(super) free: f64,
}

impl Rounds {
    pub(super) fn new(plan: &Plan, costs: &Costs<'_>) -> Self {
        let vocabulary = VocabularyLayers::of(plan);
        let round = Round { started: 0, last: 0.0, begun: NEVER, over: NEVER };
        let seconds = Op::RANK_COLLECTIVES.map(|op| costs.collective_seconds(op));
        Self { vocabulary, rounds: vec![round; vocabulary.collectives()], seconds, free: 0.0 }
    }
}
