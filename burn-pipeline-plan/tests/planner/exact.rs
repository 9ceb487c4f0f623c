//! The exact optimum of small instances, by branch and bound. It shares no code with the synthesis.
//!
//! 1. An instance has stages with whole numbers of seconds for `F`, `I` and `W`, one latency between ranks, activations of
//!    one unit that live from `F` to `W`, and a cap on how many of them a rank holds. It has one route, or two with
//!    microbatches of their own. All microbatches cost the same, so each stage takes them in order.
//! 2. Branching follows Giffler and Thompson (1960): among all steps that could be next, the one that would end first
//!    fixes a rank, and each step of that rank that starts before that end is a branch. With one stage a rank this holds
//!    under a cap, too: moving an `F` before `I`s and `W`s needs only room that is free already. With several stages a
//!    rank there is one more branch: an `F` that would end first is held back until an `F` of another stage, which may
//!    need its room, has run on the rank.
//! 3. If a backward may be whole (`B` in place of `I` and `W`), both `I` and `B` count as ending when the longer one would,
//!    so that neither form cuts off orders with the other.
//! 4. A state is dropped if its bound reaches the best makespan, or if no time was later in a state with the same steps
//!    done.

use std::collections::HashMap;

/// A small instance.
#[derive(Clone, Debug)]
pub(crate) struct Small {
    /// Rank of each stage, route by route.
    pub(crate) ranks: Vec<usize>,
    /// Seconds of `F`, `I`, `W` of each stage.
    pub(crate) seconds: Vec<[u32; 3]>,
    /// Seconds of `B`, where that is another way of a stage's backward.
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

    /// Seconds of a pass: `F`, `I`, `W`, `B`.
    fn seconds(&self, stage: usize, pass: usize) -> Option<u32> {
        match pass {
            3 => self.whole.as_ref().map(|seconds| seconds[stage]),
            pass => Some(self.seconds[stage][pass]),
        }
    }
}

/// Passes in the order of [`Small::seconds`].
const PASSES: std::ops::Range<usize> = 0..4;

#[derive(Clone)]
struct State {
    /// `F`, `I` and `W` done of each stage; a `B` is an `I` and a `W`.
    done: Vec<[u8; 3]>,
    clock: Vec<u32>,
    /// Activations that each rank holds.
    held: Vec<usize>,
    /// Stages whose next `F` is held back until another stage's has run on the rank.
    back: Vec<bool>,
    /// Ends of `F`, then of `I`, by stage and microbatch, in one list: states are cloned at every step.
    ends: Vec<u32>,
}

struct Search<'a> {
    small: &'a Small,
    /// The least seconds from the end of a stage's last `F`, and from that of its last `I`, to the end of all.
    tails: Vec<[u32; 2]>,
    /// The most microbatches of a route.
    width: usize,
    best: u32,
    seen: HashMap<Vec<u8>, Vec<Vec<u32>>>,
    nodes: u64,
    most: u64,
}

/// The least makespan below `known`, or `known` if there is none; none if more than `most` states would be looked at.
pub(crate) fn optimum(small: &Small, known: u32, most: u64) -> Option<u32> {
    let mut search = Search::new(small, known, most);
    search.visit(&State::first(small));
    (search.nodes <= most).then_some(search.best)
}

impl State {
    /// Nothing is done.
    fn first(small: &Small) -> Self {
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
    fn new(small: &'a Small, best: u32, most: u64) -> Self {
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

    /// The least seconds that follow a stage's last `F`, and its last `I`: the `F` still goes up and comes down, the
    /// `I` still goes down.
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

    /// Where the end of a stage's `F` (pass 0) or `I` (pass 1) stands in [`State::ends`].
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

    /// When the next step of a stage could start, if its inputs are known and it fits.
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

    /// What could be next: when it starts, its stage and its pass.
    fn ready(&self, state: &State) -> Vec<(u32, usize, usize)> {
        let steps = (0..state.done.len()).flat_map(|stage| PASSES.map(move |pass| (stage, pass)));
        let steps = steps.filter(|&(stage, pass)| self.small.seconds(stage, pass).is_some());
        steps.filter_map(|(stage, pass)| self.start(state, stage, pass).map(|at| (at, stage, pass))).collect()
    }

    fn is_done(&self, state: &State) -> bool {
        (0..state.done.len()).all(|stage| (0..3).all(|pass| self.left(state, stage, pass) == 0))
    }

    fn left(&self, state: &State, stage: usize, pass: usize) -> usize {
        self.small.microbatches_of(stage) - usize::from(state.done[stage][pass])
    }

    fn cap_binds(&self, rank: usize) -> bool {
        let on = (0..self.small.ranks.len()).filter(|&s| self.small.ranks[s] == rank);
        self.small.cap < on.map(|s| self.small.microbatches_of(s)).sum()
    }

    fn after(&self, state: &State, at: u32, stage: usize, pass: usize) -> State {
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

    /// A makespan that no completion beats.
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

    /// The earliest that anything of a stage can still start.
    fn soonest(&self, state: &State, stage: usize) -> u32 {
        (0..3).filter_map(|pass| self.start(state, stage, pass)).min().unwrap_or(0)
    }

    /// The times that what is still to come may depend on.
    fn times(&self, state: &State) -> Vec<u32> {
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

#[test]
fn the_optimum_of_instances_that_can_be_done_by_hand() {
    let small = |ranks: Vec<usize>, microbatches, cap| {
        let seconds = vec![[1, 1, 1]; ranks.len()];
        Small { ranks, seconds, whole: None, latency: 0, microbatches: vec![microbatches], cap }
    };
    // One rank works without pause.
    assert_eq!(optimum(&small(vec![0], 3, 3), 1000, 1 << 20), Some(9));
    // Two ranks, room for one activation: 0F 1F 1I 0I 0W, and again: rank 0 cannot start before its W.
    assert_eq!(optimum(&small(vec![0, 1], 2, 1), 1000, 1 << 20), Some(10));
    // With room enough only the way to rank 1 is idle there.
    assert_eq!(optimum(&small(vec![0, 1], 2, 2), 1000, 1 << 20), Some(7));
    assert_eq!(optimum(&small(vec![0, 1, 1, 0], 1, 2), 1000, 1 << 20), Some(9));
    // Two routes in opposite directions, a microbatch each: no rank waits. One route for both takes seven seconds.
    let both_ways = Small { microbatches: vec![1, 1], ..small(vec![0, 1, 1, 0], 1, 4) };
    assert_eq!(optimum(&both_ways, 1000, 1 << 20), Some(6));
    // Whole backwards at half the price: F B F B on one rank. With two ranks a single `I` would let rank 0 begin sooner,
    // but it costs more, and there is nothing to fill the gap.
    let cheap = |ranks: Vec<usize>| Small { whole: Some(vec![1; ranks.len()]), ..small(ranks, 2, 2) };
    assert_eq!(optimum(&cheap(vec![0]), 1000, 1 << 20), Some(4));
    assert_eq!(optimum(&cheap(vec![0, 1]), 1000, 1 << 20), Some(6));
}

#[test]
fn branch_and_bound_agrees_with_looking_at_every_order() {
    // Two ranks, two or three microbatches: every pair of rows, timed directly.
    for (seconds, latency) in [([[1, 1, 1], [1, 1, 1]], 0), ([[2, 3, 1], [1, 2, 2]], 1), ([[3, 1, 2], [2, 2, 1]], 2)] {
        for microbatches in 1..=3 {
            for cap in 1..=microbatches {
                let (ranks, seconds) = (vec![0, 1], seconds.to_vec());
                let small = Small { ranks, seconds, whole: None, latency, microbatches: vec![microbatches], cap };
                let rows = words(microbatches, cap);
                let spans = rows.iter().flat_map(|a| rows.iter().filter_map(|b| span(&small, [a, b])));
                assert_eq!(optimum(&small, 1000, 1 << 22), spans.min(), "{small:?}");
            }
        }
    }
}

/// The least makespan over all orders: every step is appended to every rank's row. Of partial rows with the same steps
/// done, those are kept that no other one beats in all times. `None` if nothing fits.
fn every_order(small: &Small) -> Option<u32> {
    let search = Search::new(small, u32::MAX, u64::MAX);
    let (first, mut least) = (State::first(small), None);
    let mut parts: HashMap<Vec<[u8; 3]>, Vec<State>> = HashMap::from([(first.done.clone(), vec![first])]);
    while !parts.is_empty() {
        let mut next: HashMap<Vec<[u8; 3]>, Vec<State>> = HashMap::new();
        for state in parts.values().flatten() {
            if search.is_done(state) {
                let span = *state.clock.iter().max().unwrap();
                least = Some(least.map_or(span, |least: u32| least.min(span)));
            }
            for (at, stage, pass) in search.ready(state) {
                let (mut after, rank) = (search.after(state, at, stage, pass), small.ranks[stage]);
                after.back.fill(false);
                assert_eq!(after.clock[rank], at + small.seconds(stage, pass).unwrap());
                let alike = next.entry(after.done.clone()).or_default();
                let new = search.times(&after);
                let beaten = |a: &[u32], b: &[u32]| a.iter().zip(b).all(|(a, b)| b <= a);
                if !alike.iter().any(|other| beaten(&new, &search.times(other))) {
                    alike.retain(|other| !beaten(&search.times(other), &new));
                    alike.push(after);
                }
            }
        }
        parts = next;
    }
    least
}

/// Asserts that both searches agree under every cap and that a larger cap never takes longer. Returns how often a larger
/// cap is faster.
fn agreed_under_every_cap(small: &Small) -> usize {
    let (mut binding, mut before) = (0, None);
    let stages = small.ranks.len() / small.microbatches.len();
    for cap in 1..=stages * small.microbatches.iter().sum::<usize>() {
        let small = Small { cap, ..small.clone() };
        let (every, branched) = (every_order(&small), optimum(&small, 1000, 1 << 22));
        assert_eq!(branched, Some(every.unwrap_or(1000)), "{small:?}");
        assert!(every.unwrap_or(1000) <= before.unwrap_or(1000));
        binding += usize::from(before.is_some() && before != every);
        before = every.or(before);
    }
    binding
}

/// Costs of stages that differ a little from one to the next.
fn uneven(ranks: &[usize], costs: [u32; 3]) -> Vec<[u32; 3]> {
    (0..ranks.len() as u32).map(|i| costs.map(|c| 1 + (c + i) % 4)).collect()
}

const UNEVEN: [([u32; 3], u32); 3] = [([1, 1, 1], 0), ([2, 3, 1], 1), ([3, 1, 2], 3)];

#[test]
fn under_a_cap_over_several_stages_a_rank_it_agrees_with_every_order() {
    let mut binding = 0;
    for (ranks, most) in [(vec![0, 0], 3), (vec![0, 0, 0], 2), (vec![0, 1, 1, 0], 2), (vec![0, 1, 0, 1], 2)] {
        for ((costs, latency), microbatches) in UNEVEN.into_iter().flat_map(|c| (1..=most).map(move |m| (c, m))) {
            let (seconds, microbatches) = (uneven(&ranks, costs), vec![microbatches]);
            let small = Small { ranks: ranks.clone(), seconds, whole: None, latency, microbatches, cap: 0 };
            binding += agreed_under_every_cap(&small);
        }
    }
    assert!(binding > 10, "caps made a difference {binding} times only");
}

#[test]
fn over_two_routes_it_agrees_with_every_order() {
    let mut binding = 0;
    for (ranks, costs) in [vec![0, 0], vec![0, 1, 1, 0]].iter().flat_map(|ranks| UNEVEN.map(|costs| (ranks, costs))) {
        for microbatches in [vec![1, 1], vec![2, 1]] {
            let (seconds, latency) = (uneven(ranks, costs.0), costs.1);
            let small = Small { ranks: ranks.clone(), seconds, whole: None, latency, microbatches, cap: 0 };
            binding += agreed_under_every_cap(&small);
        }
    }
    assert!(binding > 5, "caps made a difference {binding} times only");
}

#[test]
fn where_backwards_may_be_whole_it_agrees_with_every_order() {
    let (mut binding, mut cheaper) = (0, 0);
    for (ranks, most) in [(vec![0], 3), (vec![0, 1], 3), (vec![0, 0], 2), (vec![0, 1, 2], 2), (vec![0, 1, 1, 0], 1)] {
        for ((costs, latency), microbatches) in UNEVEN.into_iter().flat_map(|c| (1..=most).map(move |m| (c, m))) {
            for saved in [0, 1] {
                let (seconds, microbatches) = (uneven(&ranks, costs), vec![microbatches]);
                let whole = seconds.iter().map(|[_, i, w]| i + w - saved).collect();
                let small = Small { ranks: ranks.clone(), seconds, whole: Some(whole), latency, microbatches, cap: 0 };
                binding += agreed_under_every_cap(&small);
                let free = Small { cap: usize::MAX, ..small };
                let split = every_order(&Small { whole: None, ..free.clone() });
                assert!(every_order(&free) <= split);
                cheaper += usize::from(every_order(&free) < split);
            }
        }
    }
    assert!(binding > 10 && cheaper > 10, "{binding} {cheaper}");
}

/// Every row of passes with at most `cap` activations held.
fn words(microbatches: usize, cap: usize) -> Vec<Vec<usize>> {
    let mut words: Vec<(Vec<usize>, [usize; 3])> = vec![(Vec::new(), [0; 3])];
    for _ in 0..3 * microbatches {
        let next = words.iter().flat_map(|(word, done)| {
            let fits = [done[0] < microbatches && done[0] - done[2] < cap, done[1] < done[0], done[2] < done[1]];
            (0..3).filter(move |&pass| fits[pass]).map(move |pass| {
                let mut done = *done;
                done[pass] += 1;
                ([word.as_slice(), &[pass]].concat(), done)
            })
        });
        words = next.collect();
    }
    words.into_iter().map(|(word, _)| word).collect()
}

/// The makespan of two rows, by running them until neither can go on.
fn span(small: &Small, rows: [&Vec<usize>; 2]) -> Option<u32> {
    let mut ends: [[Vec<u32>; 3]; 2] = Default::default();
    let (mut next, mut clock) = ([0; 2], [0; 2]);
    loop {
        let mut moved = false;
        for rank in 0..2 {
            let Some(&pass) = rows[rank].get(next[rank]) else { continue };
            let (n, c) = (ends[rank][pass].len(), small.latency);
            let ready = match (pass, rank) {
                (0, 0) => Some(0),
                (0, _) => ends[0][0].get(n).map(|end| end + c),
                (1, 0) => ends[1][1].get(n).map(|end| end + c),
                _ => Some(0),
            };
            if let Some(ready) = ready {
                clock[rank] = clock[rank].max(ready) + small.seconds[rank][pass];
                ends[rank][pass].push(clock[rank]);
                next[rank] += 1;
                moved = true;
            }
        }
        if !moved {
            let ended = (0..2).all(|rank| next[rank] == rows[rank].len());
            return ended.then(|| clock[0].max(clock[1]));
        }
    }
}
