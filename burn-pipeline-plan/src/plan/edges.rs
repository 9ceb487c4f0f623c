//! The dense numbering that passes and checks use: every pair of stage and microbatch has one index, and adding or
//! subtracting the microbatch count gives the pair of the next or previous stage.
//!
//! Guarantees: building it takes time and memory linear in the number of stages, independent of microbatches.
//!
//! 1. Stages are numbered by [`Placement::slot`]: route 0 first, each in model order.
//! 2. The pairs of a stage are consecutive: `base .. base + microbatches`. Both neighbours of a stage are on its
//!    route and so have the same microbatch count; hence the pair of the next stage is `pair + microbatches`.
//! 3. Each side of a stage is an end of the model, a neighbour on the same rank, or a neighbour on another rank.

use super::placement::Placement;
use super::rows::Plan;
use super::skips;
use super::stage_id::StageId;
use super::task::Task;

/// What adjoins one side of a stage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    /// Nothing: the model begins or ends here.
    End,
    /// A stage on the same rank: the value is moved, not sent.
    SameRank,
    /// A stage on another rank: the value is sent.
    OtherRank,
}

/// One stage of one route, with the properties that passes and checks read most often.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub(crate) rank: usize,
    /// Index of its pair with microbatch 0.
    pub(crate) base: usize,
    /// Microbatches on its route.
    pub(crate) microbatches: usize,
    /// What its input comes from.
    pub(crate) before: Side,
    /// What its output goes to.
    pub(crate) after: Side,
}

/// A skip edge on one route.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Skip {
    /// Dense number of the earlier stage.
    pub(crate) from: usize,
    /// Dense number of the later stage.
    pub(crate) to: usize,
    /// True if its value must be sent to another rank.
    pub(crate) crosses: bool,
    /// Index of its value for microbatch 0 among the values of all skip edges.
    pub(crate) base: usize,
}

/// All stages of a plan under the dense numbering.
#[derive(Debug)]
pub(crate) struct Edges {
    slots: Vec<Slot>,
    skips: Vec<Skip>,
    skip_pairs: usize,
    stages: usize,
    pairs: usize,
}

impl Edges {
    pub(crate) fn new(plan: &Plan) -> Self {
        let placement = plan.placement();
        let mut pairs = 0;
        let number = |stage: StageId| {
            let microbatches = plan.microbatches()[stage.route()];
            let base = pairs;
            pairs += microbatches;
            let before = stage.previous().map_or(Side::End, |previous| side(placement, previous));
            let after = placement.next(stage).map_or(Side::End, |_| side(placement, stage));
            Slot { rank: placement.rank_of(stage), base, microbatches, before, after }
        };
        let slots: Vec<Slot> = placement.all_stages().map(number).collect();
        let mut skip_pairs = 0;
        let edges = (0..placement.routes()).flat_map(|route| plan.skips().iter().map(move |&e| (route, e)));
        let skip = |(route, edge)| {
            let (from, to) = skips::ends(edge, route);
            let base = skip_pairs;
            skip_pairs += plan.microbatches()[route];
            let crosses = placement.rank_of(from) != placement.rank_of(to);
            Skip { from: placement.slot(from), to: placement.slot(to), crosses, base }
        };
        let skips = edges.map(skip).collect();
        Self { slots, skips, skip_pairs, stages: placement.stages(), pairs }
    }

    #[inline]
    pub(crate) fn skips(&self) -> &[Skip] {
        &self.skips
    }

    /// The number of skip-edge values, over all microbatches.
    pub(crate) fn skip_pairs(&self) -> usize {
        self.skip_pairs
    }

    /// The skip edges across ranks that lead to a stage (`into`) or start there, with their indices.
    pub(crate) fn crossing_skips(&self, slot: usize, into: bool) -> impl Iterator<Item = (usize, &Skip)> {
        let ends_here = move |skip: &Skip| if into { skip.to == slot } else { skip.from == slot };
        self.skips.iter().enumerate().filter(move |(_, skip)| skip.crosses && ends_here(skip))
    }

    /// The index of a transfer's skip edge.
    pub(crate) fn find_skip(&self, task: Task) -> Option<usize> {
        let (own, peer) = (self.find(task.stage())?, self.find(task.skip_peer()?)?);
        self.skips.iter().position(|skip| (skip.from, skip.to) == (own.min(peer), own.max(peer)))
    }

    /// The dense number of a stage, if the placement holds it.
    #[inline]
    pub(crate) fn find(&self, stage: StageId) -> Option<usize> {
        let slot = stage.route() * self.stages + stage.index();
        (stage.index() < self.stages && slot < self.slots.len()).then_some(slot)
    }

    /// The stage with this dense number.
    pub(crate) fn stage(&self, slot: usize) -> StageId {
        StageId::in_route(slot / self.stages, slot % self.stages)
    }

    /// All stages by dense number.
    #[inline]
    pub(crate) fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// Returns true if a table over pairs would be far larger than the rows. `0F4000000000` is one cell that names
    /// four billion microbatches; a table for these must not be allocated. A complete plan has at least one cell
    /// for every two pairs.
    pub(crate) fn is_sparse(&self, plan: &Plan) -> bool {
        let cells = plan.rows().iter().map(Vec::len).sum::<usize>();
        self.pairs > 1 << 16 && self.pairs / 64 > cells
    }

    /// The number of (stage, microbatch) pairs, over all routes.
    pub(crate) fn pairs(&self) -> usize {
        self.pairs
    }
}

/// Says whether the stage after this one is on the same rank.
fn side(placement: &Placement, stage: StageId) -> Side {
    if placement.crosses_after(stage) { Side::OtherRank } else { Side::SameRank }
}
