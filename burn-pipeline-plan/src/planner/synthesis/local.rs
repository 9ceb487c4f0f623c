//! Local search: moves steps along their rows where the longest chain runs.
//!
//! Guarantees: what it returns is never slower than what it was given, fits the cap where that did, and depends on
//! nothing but its input.
//!
//! 1. Only a change on the longest chain can shorten it. Within a run of steps of one rank on the chain: exchange two
//!    neighbours, move the first one behind the run or the last one before it, and move a `W` to a later gap or to
//!    the end (N5 and N6 of job shops: Nowicki and Smutnicki 1996; Balas and Vazacopoulos 1998). Where whole backwards
//!    are worth trying: join a `W` with its `I`, and split a `B` into an `I` and a `W` at once, in the next gap or at the
//!    end.
//! 2. Steps of one stage and kind stay in order of microbatches, which loses nothing: microbatches are alike.
//! 3. Each round makes the best move, better or not, and does not touch that step again for some rounds (tabu search),
//!    until the lower bound is reached or the evaluations are used up. Of many moves, some spread over the chain are
//!    looked at.

use super::instance::{Instance, Pass, Step};
use super::timing::Timing;

/// Most moves that a round looks at.
const WIDTH: usize = 48;

/// A change of one row.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Move {
    rank: usize,
    from: usize,
    to: usize,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Kind {
    /// The step at `from` is taken out and put in again, so that it stands at `to`.
    Shift,
    /// The `I` at `to` becomes a `B` with the `W` at `from`, which goes.
    Join,
    /// The `B` at `from` becomes an `I`, with its `W` at `to`.
    Split,
}

impl Move {
    /// The row with the change.
    fn made(self, row: &[Step]) -> Vec<Step> {
        let mut row = row.to_vec();
        let Self { from, to, .. } = self;
        match self.kind {
            Kind::Shift if from < to => row[from..=to].rotate_left(1),
            Kind::Shift => row[to..=from].rotate_right(1),
            Kind::Join => {
                row.remove(from);
                row[to].pass = Pass::Whole;
            }
            Kind::Split => {
                row[from].pass = Pass::Input;
                row.insert(to, Step { pass: Pass::Weight, ..row[from] });
            }
        }
        row
    }
}

struct Search<'a> {
    instance: &'a Instance,
    rows: Vec<Vec<Step>>,
    timing: Timing,
    /// Place of each step in its row.
    places: Vec<usize>,
    /// Until which round a step stays where it is.
    tabu: Vec<usize>,
}

/// Improves the rows with at most so many evaluations; gives the makespan too. None if they cannot be run.
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
            // All moves are forbidden for now: let the steps go.
            search.tabu.fill(0);
            search.timing.run(instance, &search.rows)?;
            continue;
        };
        let moved = instance.index(search.rows[moves[i].rank][moves[i].from]);
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
    /// The moves of this round, in a fixed order, spread over the chain where there are too many.
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
            let shift = |(from, to)| Move { rank, from, to, kind: Kind::Shift };
            moves.extend((first..last).map(|from| shift((from, from + 1))));
            if last > first + 1 {
                moves.extend([(first, last), (last, first), (last, first + 1), (first, last - 1)].map(shift));
            }
            let row = &self.rows[rank];
            let of = |pass| (first..=last).filter(move |&place| row[place].pass == pass);
            let later = |from| self.later(rank, from, last).map(move |to| (from, to));
            moves.extend(of(Pass::Weight).flat_map(later).map(shift));
            if self.instance.mixes {
                moves.extend(of(Pass::Weight).map(|from| self.joining(rank, from)));
                let split = |(from, to)| Move { rank, from, to: to + 1, kind: Kind::Split };
                moves.extend(of(Pass::Whole).flat_map(|from| later(from).chain([(from, from)])).map(split));
            }
        }
        moves.retain(|&m| self.is_legal(m));
        moves.sort_unstable();
        moves.dedup();
        let stride = moves.len().div_ceil(WIDTH).max(1);
        moves.into_iter().skip(round % stride).step_by(stride).collect()
    }

    /// A `W` that becomes part of its `I`.
    fn joining(&self, rank: usize, from: usize) -> Move {
        let weight = self.rows[rank][from];
        let input = self.places[self.instance.index(Step { pass: Pass::Input, ..weight })];
        Move { rank, from, to: input, kind: Kind::Join }
    }

    /// Where a `W` could go behind its run: before the next gap, and to the end.
    fn later(&self, rank: usize, from: usize, last: usize) -> impl Iterator<Item = usize> + use<> {
        let row = &self.rows[rank];
        let time = |place: usize| {
            let index = self.instance.index(row[place]);
            (self.timing.start[index], self.timing.end[index])
        };
        let gap = (last..row.len() - 1).find(|&place| time(place + 1).0 > time(place).1);
        [gap, Some(row.len() - 1)].into_iter().flatten().filter(move |&to| to > from)
    }

    /// Does the step pass none that it has to stay before or behind, and does the row keep fitting?
    fn is_legal(&self, m: Move) -> bool {
        let row = &self.rows[m.rank];
        let step = row[m.from];
        let passed = if m.from < m.to { m.from + 1..m.to + 1 } else { m.to..m.from };
        let alike = |other: &Step| {
            let same_pass = other.pass.place() == step.pass.place();
            other.slot == step.slot && (same_pass || other.microbatch == step.microbatch)
        };
        if m.kind == Kind::Shift && row[passed].iter().any(alike) {
            return false;
        }
        self.instance.cap.is_infinite() || self.instance.fits(self.instance.peak(m.rank, &m.made(row)))
    }

    fn try_move(&mut self, m: Move) -> Option<f64> {
        let made = m.made(&self.rows[m.rank]);
        let before = std::mem::replace(&mut self.rows[m.rank], made);
        let span = self.timing.run(self.instance, &self.rows);
        self.rows[m.rank] = before;
        span
    }
}
