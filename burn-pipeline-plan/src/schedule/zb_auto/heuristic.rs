//! The heuristic behind [`ZbAuto`](super::ZbAuto).
//!
//! Guarantees: every F, I and W once on every rank, I after its F and W after its I, microbatches in order, and
//! memory within the limit, for any limit of at least one activation.
//!
//! 1. Warm-up: one F on every rank. Then, from the last rank back, as many more as memory and time allow before the
//!    first I arrives (flag `late_first_input`: also one more that delays it). Rank r stays at least one F ahead of
//!    r+1.
//! 2. Steady, for each microbatch after the first: a round of F down the ranks, then a round of I back up. Before
//!    each F or I, the rank runs W in three cases: memory is full; the gap until the input arrives fits a whole W;
//!    or the gap is shorter than a W, but leaving it idle would give this rank the largest bubble of all (flag
//!    `fill_small_gaps`: in any gap).
//! 3. A rank that is two or more F ahead of the next one skips an F that would delay the next rank's I, and so do
//!    all ranks before it (flag `inputs_first`).
//! 4. Once rank 0 has run its last F, it runs every W that is due. The remaining W come last.
//!
//! Time is counted in whole ticks: a millionth of the largest cost, rounded down to a power of ten. So costs with
//! few digits are exact, and equal times compare equal in any unit.

/// The operation that a step of the heuristic places.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pass {
    Forward,
    Input,
    Weight,
}

/// Costs in ticks, memory in the given unit.
pub(super) struct Problem {
    pub(super) ranks: usize,
    pub(super) microbatches: usize,
    /// Ticks of F, I and W on each rank.
    pub(super) costs: Vec<[u64; 3]>,
    pub(super) transfer: u64,
    /// The memory that F, I and W take; negative if they free some.
    pub(super) memory: [f64; 3],
    pub(super) limit: f64,
}

/// The three choices; all combinations are tried.
#[derive(Clone, Copy)]
struct Flags {
    late_first_input: bool,
    inputs_first: bool,
    fill_small_gaps: bool,
}

/// The state of one rank: operations done (F, I, W), its clock, memory and bubble, and its order so far.
#[derive(Clone, Default)]
struct Rank {
    done: [usize; 3],
    now: u64,
    memory: f64,
    bubble: u64,
    start: Option<u64>,
    ends: [Vec<u64>; 2],
    order: Vec<(Pass, usize)>,
}

/// An order under construction.
struct Run<'a> {
    problem: &'a Problem,
    flags: Flags,
    ranks: Vec<Rank>,
    largest_bubble: u64,
}

/// The orders, one per rank, of the shortest of the 8 runs; the first of them in a tie.
pub(super) fn shortest(problem: &Problem) -> Vec<Vec<(Pass, usize)>> {
    let flags = |bits: u8| {
        let bit = |bit: u8| bits & bit != 0;
        Flags { late_first_input: bit(4), inputs_first: !bit(2), fill_small_gaps: !bit(1) }
    };
    let runs = (0..8).map(|bits| Run::new(problem, flags(bits)).finish());
    let best = runs.min_by_key(|(length, _)| *length);
    best.map(|(_, orders)| orders).unwrap_or_default()
}

impl<'a> Run<'a> {
    fn new(problem: &'a Problem, flags: Flags) -> Self {
        let m = problem.microbatches;
        let rank = Rank { order: Vec::with_capacity(3 * m), ..Rank::default() };
        Self { problem, flags, ranks: vec![rank; problem.ranks], largest_bubble: 0 }
    }

    fn finish(mut self) -> (u64, Vec<Vec<(Pass, usize)>>) {
        self.warm_up();
        for _ in 1..self.problem.microbatches {
            self.forward_round();
            for rank in (0..self.problem.ranks).rev() {
                self.input(rank);
            }
        }
        for rank in 0..self.problem.ranks {
            while self.ranks[rank].done[2] < self.problem.microbatches {
                self.put(rank, Pass::Weight);
            }
        }
        let length = self.ranks.iter().map(|r| r.now - r.start.unwrap_or(0)).max().unwrap_or(0);
        (length, self.ranks.into_iter().map(|r| r.order).collect())
    }

    fn cost(&self, rank: usize, pass: Pass) -> u64 {
        self.problem.costs[rank][pass as usize]
    }

    fn has_weight(&self, rank: usize) -> bool {
        self.ranks[rank].done[2] < self.ranks[rank].done[1]
    }

    fn has_forward(&self, rank: usize) -> bool {
        self.ranks[rank].done[0] < self.problem.microbatches
    }

    /// The arrival time of the input of a rank's next F or I, if it comes from another rank.
    fn arrival(&self, rank: usize, pass: Pass) -> Option<u64> {
        let from = match pass {
            Pass::Forward => rank.checked_sub(1)?,
            Pass::Input => Some(rank + 1).filter(|&next| next < self.problem.ranks)?,
            Pass::Weight => return None,
        };
        let ends = &self.ranks[from].ends[pass as usize];
        ends.get(self.ranks[rank].done[pass as usize]).map(|end| end + self.problem.transfer)
    }

    fn put(&mut self, rank: usize, pass: Pass) {
        let start = self.arrival(rank, pass).unwrap_or(0).max(self.ranks[rank].now);
        let end = start + self.cost(rank, pass);
        let state = &mut self.ranks[rank];
        if state.done[0] > 0 {
            state.bubble += start - state.now;
            self.largest_bubble = self.largest_bubble.max(state.bubble);
        }
        state.start.get_or_insert(start);
        state.now = end;
        state.memory += self.problem.memory[pass as usize];
        if let Some(ends) = state.ends.get_mut(pass as usize) {
            ends.push(end);
        }
        state.order.push((pass, state.done[pass as usize]));
        state.done[pass as usize] += 1;
    }

    fn warm_up(&mut self) {
        for rank in 0..self.problem.ranks {
            self.put(rank, Pass::Forward);
        }
        let mut more = self.forwards_before_first_input();
        for rank in 1..self.problem.ranks {
            // Every rank has run one F so far. To stay ahead of the next rank, a rank must run more F here than
            // that one, unless it runs all of its F.
            if more[rank] >= more[rank - 1] && 1 + more[rank - 1] < self.problem.microbatches {
                more[rank] = more[rank].min(more[rank - 1].saturating_sub(1));
            }
        }
        for (rank, more) in more.into_iter().enumerate() {
            for _ in 0..more {
                self.put(rank, Pass::Forward);
            }
        }
        for rank in (0..self.problem.ranks).rev() {
            self.put(rank, Pass::Input);
        }
    }

    /// The number of further F that fit into each rank's time and memory before the first I reaches it.
    fn forwards_before_first_input(&self) -> Vec<usize> {
        let mut more = vec![0; self.problem.ranks];
        let last = self.problem.ranks - 1;
        let mut first_input = self.ranks[last].now + self.cost(last, Pass::Input);
        for rank in (0..last).rev() {
            let arrival = first_input + self.problem.transfer;
            let forward = self.cost(rank, Pass::Forward);
            let mut now = self.ranks[rank].now;
            let mut memory = self.ranks[rank].memory + self.problem.memory[0];
            while 1 + more[rank] < self.problem.microbatches && memory <= self.problem.limit {
                let too_late = if self.flags.late_first_input { now >= arrival } else { now + forward > arrival };
                if too_late {
                    break;
                }
                memory += self.problem.memory[0];
                now += forward;
                more[rank] += 1;
            }
            first_input = now.max(arrival) + self.cost(rank, Pass::Input);
        }
        more
    }

    fn forward_round(&mut self) {
        let mut wanted: Vec<bool> =
            (0..self.problem.ranks).map(|rank| self.has_forward(rank) && !self.skips_forward(rank)).collect();
        for rank in (1..self.problem.ranks).rev() {
            wanted[rank - 1] &= wanted[rank];
        }
        for rank in (0..self.problem.ranks).filter(|&rank| wanted[rank]) {
            self.make_room_and_fill(rank, Pass::Forward);
            self.put(rank, Pass::Forward);
        }
    }

    fn input(&mut self, rank: usize) {
        self.make_room_and_fill(rank, Pass::Input);
        while rank == 0 && !self.has_forward(rank) && self.has_weight(rank) {
            self.put(rank, Pass::Weight);
        }
        self.put(rank, Pass::Input);
    }

    /// Runs W while memory is full, then W in the gap before the next operation.
    fn make_room_and_fill(&mut self, rank: usize, next: Pass) {
        while self.ranks[rank].memory + self.problem.memory[next as usize] > self.problem.limit && self.has_weight(rank)
        {
            self.put(rank, Pass::Weight);
        }
        let Some(arrival) = self.arrival(rank, next) else { return };
        let weight = self.cost(rank, Pass::Weight);
        while self.has_weight(rank) && self.ranks[rank].now + weight <= arrival {
            self.put(rank, Pass::Weight);
        }
        // A W in a gap shorter than itself delays the next operation. That pays if this rank's bubble would
        // otherwise become the largest, since the longest rank determines the step.
        let gap = arrival.saturating_sub(self.ranks[rank].now);
        let spare = self.largest_bubble - self.ranks[rank].bubble;
        if self.has_weight(rank) && gap > 0 && (gap > spare || self.flags.fill_small_gaps) {
            self.put(rank, Pass::Weight);
        }
    }

    /// Returns true if a rank well ahead should skip its F in this round because it would delay the next rank's I.
    fn skips_forward(&self, rank: usize) -> bool {
        let Some(next) = self.ranks.get(rank + 1) else { return false };
        let state = &self.ranks[rank];
        if !self.flags.inputs_first || state.done[0] < next.done[0] + 2 {
            return false;
        }
        let next_pair = self.cost(rank + 1, Pass::Forward) + self.cost(rank + 1, Pass::Input);
        let due = next.now + next_pair + self.problem.transfer;
        if state.now >= due {
            return true;
        }
        // The F may need memory first: count the W that would have to run before it.
        let (mut memory, mut weights) = (state.memory + self.problem.memory[0], 0);
        while memory > self.problem.limit && state.done[2] + weights < state.done[1] {
            memory += self.problem.memory[2];
            weights += 1;
        }
        let end = state.now + self.cost(rank, Pass::Forward) + weights as u64 * self.cost(rank, Pass::Weight);
        end > due && due - state.now <= self.largest_bubble - state.bubble
    }
}
