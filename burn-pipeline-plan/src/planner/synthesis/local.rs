//! Local search: tabu search that moves steps of the longest chain along their rows.
//!
//! Guarantees: the result is never slower than the given rows, fits under the cap if they do, and depends only on the
//! input.
//!
//! 1. Only a change on the longest chain can shorten the makespan. The chain visits ranks in *runs* of consecutive
//!    steps. The moves of a run are: swap two neighbours; move its first step behind it, or its last step before it;
//!    move a `W` to the next gap or to the row's end (the neighbourhoods N5 and N6 of job shops: Nowicki and
//!    Smutnicki 1996; Balas and Vazacopoulos 1998).
//! 2. If whole backwards are tried, there are two more moves: join a `W` with its `I`, and split a `B` into an `I`
//!    and a `W` that follows at once, in the next gap or at the row's end.
//! 3. Steps of one stage and operation stay in the order of microbatches. All microbatches cost the same, so no
//!    makespan is lost.
//! 4. Each round makes the best move, even if it is worse than no move. That step then stays in place for some rounds
//!    (tabu), so that the search leaves local optima. The search ends at the lower bound, or when the evaluations are
//!    used up. A round with too many moves tries every n-th.

use super::instance::{Instance, Step, StepKind};
use super::timing::Timing;

/// The most moves that a round evaluates.
const WIDTH: usize = 48;

/// A change of one row.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Move {
    rank: usize,
    from: usize,
    to: usize,
    kind: MoveKind,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum MoveKind {
    /// The step at `from` moves to `to`.
    Shift,
    /// The `I` at `to` becomes a `B`, and the `W` at `from` is removed.
    Join,
    /// The `B` at `from` becomes an `I`, and its `W` is inserted at `to`.
    Split,
}

impl Move {
    /// A copy of the row with the change.
    fn made(self, row: &[Step]) -> Vec<Step> {
        let mut row = row.to_vec();
        let Self { from, to, .. } = self;
        match self.kind {
            MoveKind::Shift if from < to => row[from..=to].rotate_left(1),
            MoveKind::Shift => row[to..=from].rotate_right(1),
            MoveKind::Join => {
                row.remove(from);
                row[to].kind = StepKind::Whole;
            }
            MoveKind::Split => {
                row[from].kind = StepKind::Input;
                row.insert(to, Step { kind: StepKind::Weight, ..row[from] });
            }
        }
        row
    }
}

/// The rows of the current round, with their times.
struct Search<'a> {
    instance: &'a Instance,
    rows: Vec<Vec<Step>>,
    timing: Timing,
    /// The index of each step in its row.
    places: Vec<usize>,
    /// The round until which a step must not move.
    tabu: Vec<usize>,
}

/// Improves the rows with at most `evaluations` evaluations. Returns the best rows with their makespan; `None` if the
/// given rows cannot run.
pub(super) fn improve(instance: &Instance, rows: Vec<Vec<Step>>, evaluations: usize) -> Option<(f64, Vec<Vec<Step>>)> {
    let steps = instance.steps();
    let timing = Timing::new(instance);
    let mut search = Search { instance, rows, timing, places: vec![0; steps], tabu: vec![0; steps] };
    let mut best = (search.timing.run(instance, &search.rows)?, search.rows.clone());
    let bound = instance.lower_bound() * (1.0 + 1e-12);
    let (mut left, mut round) = (evaluations, 0);
    while best.0 > bound && left > 0 {
        round += 1;
        let moves = search.moves(round);
        if moves.is_empty() {
            break;
        }
        left = left.saturating_sub(moves.len());
        let step = |m: &Move| instance.index(search.rows[m.rank][m.from]);
        let tabu: Vec<bool> = moves.iter().map(|m| search.tabu[step(m)] > round).collect();
        let spans: Vec<Option<f64>> = moves.iter().map(|&m| search.try_move(m)).collect();
        let allowed = (0..moves.len()).filter_map(|i| spans[i].map(|span| (span, i)));
        let chosen = allowed.filter(|&(span, i)| !tabu[i] || span < best.0).min_by(|a, b| a.0.total_cmp(&b.0));
        let Some((_, i)) = chosen else {
            if spans.iter().all(Option::is_none) {
                break;
            }
            // Every move is tabu. Clear the list, or the search would end here.
            search.tabu.fill(0);
            search.timing.run(instance, &search.rows)?;
            continue;
        };
        let moved = instance.index(search.rows[moves[i].rank][moves[i].from]);
        // The tenure varies from step to step, so that the search does not cycle.
        search.tabu[moved] = round + 6 + (round * 7 + moved) % 7;
        search.rows[moves[i].rank] = moves[i].made(&search.rows[moves[i].rank]);
        let now = search.timing.run(instance, &search.rows)?;
        if now < best.0 * (1.0 - 1e-12) {
            best = (now, search.rows.clone());
        }
    }
    Some(best)
}

impl Search<'_> {
    /// The moves of this round in a fixed order; only every n-th if there are too many.
    fn moves(&mut self, round: usize) -> Vec<Move> {
        for row in &self.rows {
            for (place, &step) in row.iter().enumerate() {
                self.places[self.instance.index(step)] = place;
            }
        }
        let chain = self.timing.critical(self.instance, &self.rows, &self.places);
        let mut moves = Vec::new();
        for run in chain.chunk_by(|a, b| a.0 == b.0 && a.1 == b.1 + 1) {
            let (Some(&(rank, last)), Some(&(_, first))) = (run.first(), run.last()) else { continue };
            let shift = |(from, to)| Move { rank, from, to, kind: MoveKind::Shift };
            moves.extend((first..last).map(|from| shift((from, from + 1))));
            if last > first + 1 {
                moves.extend([(first, last), (last, first), (last, first + 1), (first, last - 1)].map(shift));
            }
            let row = &self.rows[rank];
            let of = |kind| (first..=last).filter(move |&place| row[place].kind == kind);
            let later = |from| self.later(rank, from, last).map(move |to| (from, to));
            moves.extend(of(StepKind::Weight).flat_map(later).map(shift));
            if self.instance.mixes {
                moves.extend(of(StepKind::Weight).map(|from| self.joining(rank, from)));
                let split = |(from, to)| Move { rank, from, to: to + 1, kind: MoveKind::Split };
                moves.extend(of(StepKind::Whole).flat_map(|from| later(from).chain([(from, from)])).map(split));
            }
        }
        moves.retain(|&m| self.is_legal(m));
        moves.sort_unstable();
        moves.dedup();
        let stride = moves.len().div_ceil(WIDTH).max(1);
        moves.into_iter().skip(round % stride).step_by(stride).collect()
    }

    /// The move that joins a `W` with its `I`.
    fn joining(&self, rank: usize, from: usize) -> Move {
        let weight = self.rows[rank][from];
        let input = self.places[self.instance.index(Step { kind: StepKind::Input, ..weight })];
        Move { rank, from, to: input, kind: MoveKind::Join }
    }

    /// The indices behind its run to which a `W` can move: before the next gap, and the row's end.
    fn later(&self, rank: usize, from: usize, last: usize) -> impl Iterator<Item = usize> + use<> {
        let row = &self.rows[rank];
        let time = |place: usize| {
            let index = self.instance.index(row[place]);
            (self.timing.start[index], self.timing.end[index])
        };
        let gap = (last..row.len() - 1).find(|&place| time(place + 1).0 > time(place).1);
        [gap, Some(row.len() - 1)].into_iter().flatten().filter(move |&to| to > from)
    }

    /// Returns true if the step passes no step whose order relative to it is fixed, and the row still fits under the
    /// cap.
    fn is_legal(&self, m: Move) -> bool {
        let row = &self.rows[m.rank];
        let step = row[m.from];
        let passed = if m.from < m.to { m.from + 1..m.to + 1 } else { m.to..m.from };
        let alike = |other: &Step| {
            let same_kind = other.kind.place() == step.kind.place();
            other.slot == step.slot && (same_kind || other.microbatch == step.microbatch)
        };
        if m.kind == MoveKind::Shift && row[passed].iter().any(alike) {
            return false;
        }
        self.instance.cap.is_infinite() || self.instance.fits(self.instance.peak(m.rank, &m.made(row)))
    }

    /// The makespan after a move; `None` if the rows then cannot run.
    fn try_move(&mut self, m: Move) -> Option<f64> {
        let made = m.made(&self.rows[m.rank]);
        let before = std::mem::replace(&mut self.rows[m.rank], made);
        let span = self.timing.run(self.instance, &self.rows);
        self.rows[m.rank] = before;
        span
    }
}
