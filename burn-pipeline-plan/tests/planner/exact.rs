//! The exact optimum of small instances, by branch and bound. It shares no code with the synthesis.
//!
//! 1. An instance has stages with whole numbers of seconds for `F`, `I` and `W`, one latency between ranks, activations
//!    of one unit that live from `F` to `W`, and a cap on a rank's activations. It has one route, or two with separate
//!    microbatches. All microbatches cost the same, so each stage takes them in order.
//! 2. Branching follows Giffler and Thompson (1960): of all possible next steps, the one that would end first selects a
//!    rank, and each step of that rank that starts before that end is a branch. With one stage a rank, this holds under
//!    a cap too: moving an `F` before `I`s and `W`s needs only memory that is free already. With several stages a rank,
//!    one more branch delays an `F` that would end first until an `F` of another stage, which may need its memory, has
//!    run on the rank.
//! 3. If a backward may be whole (`B` in place of `I` and `W`), both `I` and `B` count as ending when the longer one
//!    would, so that neither form cuts off orders with the other.
//! 4. A state is dropped if its bound reaches the best makespan, or if an earlier state with the same steps done has no
//!    later time.

use std::collections::HashMap;

/// A small instance.
#[derive(Clone, Debug)]
pub(crate) struct Small {
    /// Rank of each stage, route by route.
    pub(crate) ranks: Vec<usize>,
    /// Seconds of `F`, `I`, `W` of each stage.
    pub(crate) seconds: Vec<[u32; 3]>,
    /// Seconds of `B`, for stages whose backward may be whole.
    pub(crate) whole: Option<Vec<u32>>,
    /// Seconds between two ranks.
    pub(crate) latency: u32,
    /// Microbatches of each route.
    pub(crate) microbatches: Vec<usize>,
    /// Activations that a rank may hold.
    pub(crate) cap: usize,
}

impl Small {
    /// Stages of one route.
    pub(crate) fn stages(&self) -> usize {
        self.ranks.len() / self.microbatches.len()
    }

    fn previous(&self, stage: usize) -> Option<usize> {
        (!stage.is_multiple_of(self.stages())).then(|| stage - 1)
    }

    fn next(&self, stage: usize) -> Option<usize> {
        (!(stage + 1).is_multiple_of(self.stages())).then_some(stage + 1)
    }

    fn microbatches_of(&self, stage: usize) -> usize {
        self.microbatches[stage / self.stages()]
    }

    fn most_microbatches(&self) -> usize {
        self.microbatches.iter().copied().max().unwrap()
    }

    /// The least seconds of a stage's backward until its gradient is made.
    fn least_input(&self, stage: usize) -> u32 {
        self.seconds(stage, 3).unwrap_or(u32::MAX).min(self.seconds[stage][1])
    }

    /// Seconds of an operation: `F`, `I`, `W`, `B`.
    pub(crate) fn seconds(&self, stage: usize, pass: usize) -> Option<u32> {
        match pass {
            3 => self.whole.as_ref().map(|seconds| seconds[stage]),
            pass => Some(self.seconds[stage][pass]),
        }
    }
}

/// Operations in the order of [`Small::seconds`].
const PASSES: std::ops::Range<usize> = 0..4;

#[derive(Clone)]
pub(crate) struct State {
    /// The numbers of `F`, `I` and `W` done by each stage; a `B` counts as an `I` and a `W`.
    pub(crate) done: Vec<[u8; 3]>,
    pub(crate) clock: Vec<u32>,
    /// Activations that each rank holds.
    held: Vec<usize>,
    /// Stages whose next `F` is delayed until another stage's has run on the rank.
    pub(crate) back: Vec<bool>,
    /// Ends of `F`, then of `I`, by stage and microbatch, in one list because states are cloned at every step.
    ends: Vec<u32>,
}

pub(crate) struct Search<'a> {
    small: &'a Small,
    /// The least seconds from the end of a stage's last `F`, and of its last `I`, to the end of the step.
    tails: Vec<[u32; 2]>,
    /// The most microbatches of a route.
    width: usize,
    best: u32,
    seen: HashMap<Vec<u8>, Vec<Vec<u32>>>,
    nodes: u64,
    most: u64,
}

/// The least makespan below `known`, or `known` if there is none; `None` if it would take more than `most` states.
pub(crate) fn optimum(small: &Small, known: u32, most: u64) -> Option<u32> {
    let mut search = Search::new(small, known, most);
    search.visit(&State::first(small));
    (search.nodes <= most).then_some(search.best)
}

impl State {
    /// The state before the first step.
    pub(crate) fn first(small: &Small) -> Self {
        let (stages, ranks) = (small.ranks.len(), small.ranks.iter().max().unwrap() + 1);
        Self {
            done: vec![[0; 3]; stages],
            clock: vec![0; ranks],
            held: vec![0; ranks],
            back: vec![false; stages],
            ends: vec![0; 2 * stages * small.most_microbatches()],
        }
    }
}

impl<'a> Search<'a> {
    pub(crate) fn new(small: &'a Small, best: u32, most: u64) -> Self {
        let mut search = Self {
            small,
            tails: Vec::new(),
            width: small.most_microbatches(),
            best,
            seen: HashMap::new(),
            nodes: 0,
            most,
        };
        search.tails = (0..small.ranks.len()).map(|stage| search.tails_of(stage)).collect();
        search
    }

    /// The least seconds that follow a stage's last `F`, and its last `I`: from the `F`, up to the last stage and
    /// down again; from the `I`, down.
    fn tails_of(&self, stage: usize) -> [u32; 2] {
        let first = stage - stage % self.small.stages();
        let end = first + self.small.stages();
        let input = |s: usize| self.small.least_input(s);
        let back: u32 = (first..stage).map(|s| input(s) + self.crossing(s, s + 1)).sum();
        let up: u32 = (stage + 1..end).map(|s| self.small.seconds[s][0] + input(s) + 2 * self.crossing(s - 1, s)).sum();
        let [_, i, w] = self.small.seconds[first];
        let last = self.small.seconds(first, 3).map_or(w, |b| b.min(i + w) - input(first));
        [up + input(stage) + back + last, back + last]
    }

    /// The index of a stage's `F` (operation 0) or `I` (operation 1) in [`State::ends`].
    fn at(&self, pass: usize, stage: usize) -> usize {
        (pass * self.small.ranks.len() + stage) * self.width
    }

    /// The end of a stage's `F` or `I`, if that has run.
    fn end(&self, state: &State, pass: usize, stage: usize, microbatch: usize) -> Option<u32> {
        let ran = microbatch < usize::from(state.done[stage][pass]);
        ran.then(|| state.ends[self.at(pass, stage) + microbatch])
    }

    fn crossing(&self, a: usize, b: usize) -> u32 {
        if self.small.ranks[a] == self.small.ranks[b] { 0 } else { self.small.latency }
    }

    /// The time at which the next step of a stage could start, if its inputs are known and it fits.
    fn start(&self, state: &State, stage: usize, pass: usize) -> Option<u32> {
        let [f, i, w] = state.done[stage].map(usize::from);
        let rank = self.small.ranks[stage];
        let arrival = match pass {
            0 if f == self.small.microbatches_of(stage) || state.back[stage] => return None,
            0 => {
                if state.held[rank] >= self.small.cap {
                    return None;
                }
                match self.small.previous(stage) {
                    Some(previous) => self.end(state, 0, previous, f)? + self.crossing(previous, stage),
                    None => 0,
                }
            }
            2 => (w < i).then_some(0)?,
            _ => {
                let own = self.end(state, 0, stage, i)?;
                match self.small.next(stage) {
                    Some(next) => own.max(self.end(state, 1, next, i)? + self.crossing(stage, next)),
                    None => own,
                }
            }
        };
        Some(arrival.max(state.clock[rank]))
    }

    fn visit(&mut self, state: &State) {
        self.nodes += 1;
        if self.nodes > self.most || self.bound(state) >= self.best || self.is_dominated(state) {
            return;
        }
        let ready = self.ready(state);
        let end = |&(at, stage, pass): &(u32, usize, usize)| {
            let other = if matches!(pass, 1 | 3) { self.small.seconds(stage, 4 - pass) } else { None };
            at + self.small.seconds(stage, pass).max(other).unwrap()
        };
        let Some(first) = ready.iter().min_by_key(|step| end(step)) else {
            if self.is_done(state) {
                self.best = self.best.min(*state.clock.iter().max().unwrap());
            }
            return;
        };
        let (until, rank) = (end(first), self.small.ranks[first.1]);
        let mut next: Vec<_> =
            ready.iter().filter(|&&(at, stage, _)| self.small.ranks[stage] == rank && at < until).collect();
        // `I` first, then `F`, then `W`: good orders found early cut off more of the rest.
        next.sort_by_key(|&&(at, _, pass)| (at, [1, 0, 2, 0][pass]));
        for &(at, stage, pass) in next {
            self.visit(&self.after(state, at, stage, pass));
        }
        let (_, stage, pass) = *first;
        let others = |s: usize| s != stage && self.small.ranks[s] == rank && self.left(state, s, 0) > 0;
        if pass == 0 && (0..state.done.len()).any(others) && self.cap_binds(rank) {
            let mut state = state.clone();
            state.back[stage] = true;
            self.visit(&state);
        }
    }

    /// The possible next steps: start, stage and operation.
    pub(crate) fn ready(&self, state: &State) -> Vec<(u32, usize, usize)> {
        let steps = (0..state.done.len()).flat_map(|stage| PASSES.map(move |pass| (stage, pass)));
        let steps = steps.filter(|&(stage, pass)| self.small.seconds(stage, pass).is_some());
        steps.filter_map(|(stage, pass)| self.start(state, stage, pass).map(|at| (at, stage, pass))).collect()
    }

    pub(crate) fn is_done(&self, state: &State) -> bool {
        (0..state.done.len()).all(|stage| (0..3).all(|pass| self.left(state, stage, pass) == 0))
    }

    fn left(&self, state: &State, stage: usize, pass: usize) -> usize {
        self.small.microbatches_of(stage) - usize::from(state.done[stage][pass])
    }

    fn cap_binds(&self, rank: usize) -> bool {
        let on = (0..self.small.ranks.len()).filter(|&s| self.small.ranks[s] == rank);
        self.small.cap < on.map(|s| self.small.microbatches_of(s)).sum()
    }

    pub(crate) fn after(&self, state: &State, at: u32, stage: usize, pass: usize) -> State {
        let (mut state, rank) = (state.clone(), self.small.ranks[stage]);
        let end = at + self.small.seconds(stage, pass).unwrap();
        let done: &[usize] = if pass == 3 { &[1, 2] } else { &[pass] };
        if done[0] < 2 {
            let place = self.at(done[0], stage) + usize::from(state.done[stage][done[0]]);
            state.ends[place] = end;
        }
        done.iter().for_each(|&pass| state.done[stage][pass] += 1);
        state.clock[rank] = end;
        if pass >= 2 {
            state.held[rank] -= 1;
        }
        if pass == 0 {
            state.held[rank] += 1;
            (0..state.back.len()).filter(|&s| self.small.ranks[s] == rank).for_each(|s| state.back[s] = false);
        }
        state
    }

    /// A lower bound on the makespan of every completion.
    fn bound(&self, state: &State) -> u32 {
        let stages = state.done.len();
        let left = |s: usize, pass: usize| self.left(state, s, pass) as u32;
        let work = |s: usize| {
            let [f, i, w] = self.small.seconds[s];
            let waiting = left(s, 2) - left(s, 1);
            left(s, 0) * f + left(s, 1) * self.small.seconds(s, 3).map_or(i + w, |b| b.min(i + w)) + waiting * w
        };
        let mut bound = 0;
        for (rank, &clock) in state.clock.iter().enumerate() {
            let own = (0..stages).filter(|&s| self.small.ranks[s] == rank);
            let all: u32 = own.clone().map(work).sum();
            let soonest = own.clone().filter(|&s| work(s) > 0).map(|s| self.soonest(state, s));
            bound = bound.max(soonest.min().map_or(clock, |at| at.max(clock)) + all);
            for stage in own {
                for (pass, seconds) in
                    [self.small.seconds[stage][0], self.small.least_input(stage)].into_iter().enumerate()
                {
                    if left(stage, pass) > 0 {
                        bound = bound.max(clock + left(stage, pass) * seconds + self.tails[stage][pass]);
                    }
                }
            }
        }
        bound
    }

    /// The earliest time at which any remaining step of a stage can start.
    fn soonest(&self, state: &State, stage: usize) -> u32 {
        (0..3).filter_map(|pass| self.start(state, stage, pass)).min().unwrap_or(0)
    }

    /// The times on which the remaining steps may depend.
    pub(crate) fn times(&self, state: &State) -> Vec<u32> {
        let stages = state.done.len();
        let mut times = state.clock.clone();
        for stage in 0..stages {
            // An end counts until the neighbour's step has used it.
            let mut unused = |pass: usize, other: usize| {
                let (from, to) = (usize::from(state.done[other][pass]), usize::from(state.done[stage][pass]));
                times.extend(&state.ends[self.at(pass, stage)..][from..to]);
            };
            if let Some(next) = self.small.next(stage) {
                unused(0, next);
            }
            if let Some(previous) = self.small.previous(stage) {
                unused(1, previous);
            }
        }
        times
    }

    fn is_dominated(&mut self, state: &State) -> bool {
        let mut key: Vec<u8> = state.done.iter().flatten().copied().collect();
        key.extend(state.back.iter().map(|&back| u8::from(back)));
        let times = self.times(state);
        let seen = self.seen.entry(key).or_default();
        if seen.iter().any(|other| other.iter().zip(&times).all(|(a, b)| a <= b)) {
            return true;
        }
        seen.retain(|other| !times.iter().zip(other).all(|(a, b)| a <= b));
        seen.push(times);
        false
    }
}
