//! The placement of stages on ranks, and the routes of microbatches.
//!
//! Guarantees: every stage of every route has exactly one rank; all routes have the same number of stages; every
//! rank named is below the number of ranks. A *route* is the ordered list of stages that a microbatch visits. Loop,
//! V, wave and free placements have one route; bidirectional ones have two.
//!
//! ```text
//! loop p=2 v=2     V p=2           wave p=2 v=4            bidirectional p=4
//! rank 0: 0 2      rank 0: 0 3     rank 0: 0 3 4 7         rank 0: 0 '3
//! rank 1: 1 3      rank 1: 1 2     rank 1: 1 2 5 6         rank 1: 1 '2
//!                                                          rank 2: 2 '1
//!                                                          rank 3: 3 '0
//! ```

use super::action::Action;
use super::error::PlanError;
use super::stage_id::StageId;
use super::task::Task;
use crate::named::named;
use serde::{Deserialize, Serialize};

named! {
    /// The shape of a [`Placement`].
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum PlacementKind, name {
        /// Stage `s` on rank `s mod p` (Megatron's interleaving).
        Loop => "loop",
        /// Rank `r` holds stages `r` and `2p-1-r` (ZB-V, DualPipeV).
        V => "V",
        /// Zigzag: chunk `c` goes up the ranks if `c` is even, down if odd (Hanayo).
        Wave => "wave",
        /// Rank `r` holds stage `r` of route 0 and stage `p-1-r` of route 1 (DualPipe, Chimera).
        Bidirectional => "bidirectional",
        /// Any map.
        Free => "free",
    }
}

/// The rank of every stage. Two placements are equal if every stage has the same rank in both, whatever their kinds
/// (on one rank, a V is a loop).
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "PlacementMap")]
pub struct Placement {
    #[serde(skip)]
    kind: PlacementKind,
    ranks: usize,
    /// The rank of each stage, by route.
    routes: Vec<Vec<usize>>,
}

impl PartialEq for Placement {
    fn eq(&self, other: &Self) -> bool {
        self.ranks == other.ranks && self.routes == other.routes
    }
}

impl Eq for Placement {}

/// The stored form of a placement, before it is checked.
#[derive(Deserialize)]
struct PlacementMap {
    ranks: usize,
    routes: Vec<Vec<usize>>,
}

impl TryFrom<PlacementMap> for Placement {
    type Error = PlanError;

    fn try_from(map: PlacementMap) -> Result<Self, PlanError> {
        Placement::from_map(map.ranks, map.routes)
    }
}

impl Placement {
    /// `chunks` stages per rank: stage `s` on rank `s mod ranks`.
    pub fn looped(ranks: usize, chunks: usize) -> Result<Self, PlanError> {
        Self::of_kind(PlacementKind::Loop, ranks, chunks)
    }

    /// Two stages per rank: rank `r` holds `r` and `2 * ranks - 1 - r`.
    pub fn v(ranks: usize) -> Result<Self, PlanError> {
        Self::of_kind(PlacementKind::V, ranks, 2)
    }

    /// `chunks` stages per rank, going up and down the ranks alternately.
    pub fn wave(ranks: usize, chunks: usize) -> Result<Self, PlanError> {
        Self::of_kind(PlacementKind::Wave, ranks, chunks)
    }

    /// Two routes through the ranks in opposite directions.
    pub fn bidirectional(ranks: usize) -> Result<Self, PlanError> {
        Self::of_kind(PlacementKind::Bidirectional, ranks, 1)
    }

    /// The placement of this kind, with `chunks` stages per rank if the kind allows a choice. For `Free`, this is a
    /// loop.
    pub fn of_kind(kind: PlacementKind, ranks: usize, chunks: usize) -> Result<Self, PlanError> {
        let (kind, chunks, routes) = match kind {
            PlacementKind::V => (kind, 2, 1),
            PlacementKind::Wave => (kind, chunks, 1),
            PlacementKind::Bidirectional => (kind, 1, 2),
            PlacementKind::Loop | PlacementKind::Free => (PlacementKind::Loop, chunks, 1),
        };
        let stages = ranks.saturating_mul(chunks);
        Self::within_limits(ranks, stages)?;
        let rank_of = |route: usize, stage: usize| match kind {
            PlacementKind::V | PlacementKind::Wave => zigzag(ranks, stage),
            PlacementKind::Bidirectional if route == 1 => ranks - 1 - stage,
            _ => stage % ranks,
        };
        let route = |number| (0..stages).map(|stage| rank_of(number, stage)).collect();
        Ok(Self { kind, ranks, routes: (0..routes).map(route).collect() })
    }

    /// Any map: `rank_of_stage[s]` is the rank of stage `s`. Ranks may hold different numbers of stages.
    pub fn free(ranks: usize, rank_of_stage: Vec<usize>) -> Result<Self, PlanError> {
        Self::from_map(ranks, vec![rank_of_stage])
    }

    /// Any map for one or two routes. Its kind is recognised if it is a known one.
    pub fn from_map(ranks: usize, routes: Vec<Vec<usize>>) -> Result<Self, PlanError> {
        let lengths: Vec<usize> = routes.iter().map(Vec::len).collect();
        let stages = lengths.first().copied().unwrap_or(0);
        if !(1..=2).contains(&lengths.len()) || lengths.iter().any(|&l| l != stages) {
            return Err(PlanError::RouteLengths { lengths });
        }
        let in_bounds = Self::within_limits(ranks, stages);
        for (number, route) in routes.iter().enumerate().filter(|_| in_bounds.is_ok()) {
            if let Some((index, &rank)) = route.iter().enumerate().find(|&(_, &rank)| rank >= ranks) {
                return Err(PlanError::NoSuchRank { stage: StageId::in_route(number, index), rank, ranks });
            }
        }
        in_bounds?;
        let known = [
            Self::looped(ranks, stages / ranks),
            Self::v(ranks),
            Self::wave(ranks, stages / ranks),
            Self::bidirectional(ranks),
        ];
        Ok(known.into_iter().flatten().find(|p| p.routes == routes).unwrap_or(Self {
            kind: PlacementKind::Free,
            ranks,
            routes,
        }))
    }

    /// The placement that rows imply: each stage is on the rank that names it.
    pub fn infer(rows: &[Vec<Action>]) -> Result<Self, PlanError> {
        let mut routes: Vec<Vec<Option<usize>>> = vec![Vec::new()];
        for (rank, row) in rows.iter().enumerate() {
            for task in row.iter().flat_map(|a| a.tasks()) {
                let (number, index) = (task.stage().route(), task.stage().index());
                routes.resize(routes.len().max(number + 1), Vec::new());
                let route = &mut routes[number];
                route.resize(route.len().max(index + 1), None);
                // Every rank runs its piece of the vocabulary, whichever rank holds the stage.
                if task.op().is_vocabulary() {
                    continue;
                }
                match route[index] {
                    Some(first) if first != rank => {
                        return Err(PlanError::TwoRanks { stage: task.stage(), first, second: rank });
                    }
                    _ => route[index] = Some(rank),
                }
            }
        }
        let stages = routes.iter().map(Vec::len).max().unwrap_or(0);
        let mut map = Vec::with_capacity(routes.len());
        for (number, mut route) in routes.into_iter().enumerate() {
            route.resize(stages, None);
            let whole = route.into_iter().enumerate().map(|(index, rank)| {
                rank.ok_or(PlanError::MissingStage { stage: StageId::in_route(number, index), stages })
            });
            map.push(whole.collect::<Result<Vec<_>, _>>()?);
        }
        Self::from_map(rows.len(), map)
    }

    fn within_limits(ranks: usize, stages: usize) -> Result<(), PlanError> {
        if ranks == 0 || stages == 0 {
            return Err(PlanError::Empty { ranks, stages });
        }
        if ranks > u16::MAX as usize || stages > u16::MAX as usize {
            return Err(PlanError::TooLarge { ranks, stages });
        }
        Ok(())
    }

    /// The kind of the map.
    pub fn kind(&self) -> PlacementKind {
        self.kind
    }

    /// The number of ranks.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// The number of stages of the model (of one route).
    pub fn stages(&self) -> usize {
        self.routes[0].len()
    }

    /// The number of routes: 1 or 2.
    pub fn routes(&self) -> usize {
        self.routes.len()
    }

    /// Returns true if the placement has this stage.
    pub fn contains(&self, stage: StageId) -> bool {
        stage.route() < self.routes() && stage.index() < self.stages()
    }

    /// The rank that holds a stage.
    ///
    /// # Panics
    /// Panics if the placement does not have the stage.
    pub fn rank_of(&self, stage: StageId) -> usize {
        self.routes[stage.route()][stage.index()]
    }

    /// A dense number for a stage, below [`Placement::slots`]: route 0 first, each in model order.
    pub fn slot(&self, stage: StageId) -> usize {
        stage.route() * self.stages() + stage.index()
    }

    /// The number of stages over all routes.
    pub fn slots(&self) -> usize {
        self.stages() * self.routes()
    }

    /// All stages: route 0 first, each in model order.
    pub fn all_stages(&self) -> impl Iterator<Item = StageId> + '_ {
        (0..self.routes()).flat_map(|route| (0..self.stages()).map(move |s| StageId::in_route(route, s)))
    }

    /// The stages of a rank: route 0 first, each in model order.
    pub fn stages_of(&self, rank: usize) -> Vec<StageId> {
        self.all_stages().filter(|&s| self.rank_of(s) == rank).collect()
    }

    /// The stage at the other end of a transfer, or of the transfer that a wait waits for; `None` at the ends of the
    /// model.
    pub(crate) fn peer(&self, task: Task) -> Option<StageId> {
        task.peer().filter(|peer| peer.index() < self.stages())
    }

    /// The stage after this one, if any.
    pub fn next(&self, stage: StageId) -> Option<StageId> {
        stage.next(self.stages())
    }

    /// Returns true if the next stage is on another rank, so that the output of `stage` must be sent.
    pub fn crosses_after(&self, stage: StageId) -> bool {
        self.next(stage).is_some_and(|next| self.rank_of(next) != self.rank_of(stage))
    }
}

fn zigzag(ranks: usize, stage: usize) -> usize {
    let (chunk, offset) = (stage / ranks, stage % ranks);
    if chunk.is_multiple_of(2) { offset } else { ranks - 1 - offset }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(placement: &Placement, rank: usize) -> String {
        placement.stages_of(rank).iter().map(StageId::to_string).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_four_shapes_are_as_drawn() {
        assert_eq!(on(&Placement::looped(2, 2).unwrap(), 1), "1 3");
        assert_eq!(on(&Placement::v(2).unwrap(), 0), "0 3");
        assert_eq!(on(&Placement::wave(2, 4).unwrap(), 1), "1 2 5 6");
        assert_eq!(on(&Placement::bidirectional(4).unwrap(), 1), "1 '2");
    }

    #[test]
    fn placements_with_one_map_are_equal() {
        assert_eq!(Placement::v(1).unwrap(), Placement::looped(1, 2).unwrap());
        assert_ne!(Placement::v(2).unwrap(), Placement::looped(2, 2).unwrap());
    }

    #[test]
    fn a_map_is_recognised() {
        let kind = |ranks, map: &[usize]| Placement::free(ranks, map.to_vec()).unwrap().kind();
        assert_eq!(kind(2, &[0, 1, 0, 1]), PlacementKind::Loop);
        assert_eq!(kind(2, &[0, 1, 1, 0]), PlacementKind::V);
        assert_eq!(kind(2, &[0, 1, 1, 0, 0, 1]), PlacementKind::Wave);
        assert_eq!(kind(2, &[0, 0, 1, 1, 0]), PlacementKind::Free);
    }

    #[test]
    fn bad_maps_are_refused() {
        assert!(matches!(Placement::free(2, vec![0, 2]), Err(PlanError::NoSuchRank { rank: 2, .. })));
        assert!(matches!(Placement::looped(0, 1), Err(PlanError::Empty { .. })));
        assert!(matches!(Placement::looped(70_000, 1), Err(PlanError::TooLarge { .. })));
        assert!(matches!(Placement::from_map(2, vec![vec![0], vec![0, 1]]), Err(PlanError::RouteLengths { .. })));
        let twice = vec![vec![Action::forward(0, 0)], vec![Action::forward(0, 0)]];
        assert!(matches!(Placement::infer(&twice), Err(PlanError::TwoRanks { .. })));
        let hole = vec![vec![Action::forward(0, 0), Action::forward(2, 0)]];
        assert!(matches!(Placement::infer(&hole), Err(PlanError::MissingStage { .. })));
    }
}
