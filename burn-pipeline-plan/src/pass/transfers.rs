//! Lowering: inserts every send and receive.
//!
//! ```text
//! before   rank 0: 0F0 0F1 0B0 0B1
//!          rank 1: 1F0 1B0 1F1 1B1
//! after    rank 0: 0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1
//!          rank 1: 1RECV_F0 1F0 1RECV_F1 1B0 1SEND_B0 1F1 1B1 1SEND_B1
//! ```
//!
//! Guarantees: one pass for all placements. Each value that crosses ranks is sent once, right after it is computed,
//! and received once, before it is used. Neighbours on one rank exchange nothing. The lowered plan cannot deadlock,
//! even under rendezvous. Sends and receives are in the order of PyTorch's `_add_send_recv`, cell by cell.
//!
//! 1. Ranks take turns in rank order. In its turn a rank runs one cell, if the cell's inputs have arrived. Idle
//!    cells and `UNSHARD`, `RESHARD`, `REDUCE_GRAD` take a turn too, so they influence the places of receives.
//! 2. A cell is followed by the sends of its values that cross ranks, and each receive is appended at the same
//!    moment to the peer's row so far. So both ends of a channel have the same order. There is no deadlock: the
//!    order in which the cells ran here lets every send meet its receive.
//! 3. A rank that cannot run is not visited again until a value arrives for it. So time is linear in the plan, plus
//!    one word per round for every 64 ranks.
//! 4. A rank passes a collective of all ranks where it starts it; a use runs once all ranks have passed it.
//! 5. A cell that does not fit the placement or the counts never runs. If some cell has not run in the end, the plan
//!    is refused, with the fault that `check` finds.
//!
//! Idle cells are dropped. A plan that already has a transfer is returned unchanged.

use super::error::PassError;
use crate::plan::edges::{Edges, Side};
use crate::plan::vocabulary::VocabularyLayers;
use crate::plan::{Action, MicrobatchTask, Op, Plan, StageId, Task};

/// The bit for a pair's input: the previous stage's output is on the pair's rank.
const INPUT: u8 = 1;
/// The bit for the gradient of a pair's output.
const GRADIENT: u8 = 2;

impl Plan {
    /// Inserts `SEND_F`, `RECV_F`, `SEND_B` and `RECV_B` wherever a value crosses ranks.
    ///
    /// Idempotent: a lowered plan is returned unchanged.
    ///
    /// # Errors
    /// Returns [`PassError::Check`] if ranks wait for values that are never computed, if a cell does not fit the
    /// placement or the counts, or if the plan is far from complete.
    ///
    /// ```
    /// use burn_pipeline_plan::plan::Plan;
    /// let plan = Plan::from_csv("mine", "0F0,0B0\n1F0,1B0\n")?;
    /// assert_eq!(plan.with_transfers()?.to_csv(), "0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_transfers(&self) -> Result<Plan, PassError> {
        if self.is_lowered() {
            return Ok(self.clone());
        }
        let edges = Edges::new(self);
        if edges.is_sparse(self) {
            return Err(PassError::refusal(self));
        }
        let mut lowering = Lowering::new(self, &edges);
        while lowering.round() {}
        if lowering.heads.iter().any(Option::is_some) {
            return Err(PassError::refusal(self));
        }
        Ok(self.with_rows(lowering.rows))
    }
}

struct Lowering<'a> {
    plan: &'a Plan,
    edges: &'a Edges,
    /// The `INPUT` and `GRADIENT` bits of every pair.
    arrived: Vec<u8>,
    /// The index of each rank's next cell.
    next: Vec<usize>,
    /// That cell, read as soon as the previous one has run. Rows are far apart in memory; by the rank's next turn,
    /// the processor has fetched the cell.
    heads: Vec<Option<Action>>,
    /// One bit per rank, set if the rank may be able to run.
    awake: Vec<u64>,
    rows: Vec<Vec<Action>>,
    vocabulary: VocabularyLayers,
    /// The number of ranks that have passed each collective.
    collectives: Vec<u32>,
}

impl<'a> Lowering<'a> {
    fn new(plan: &'a Plan, edges: &'a Edges) -> Self {
        let ranks = plan.ranks();
        let mut sizes: Vec<usize> = plan.rows().iter().map(Vec::len).collect();
        let directions = if plan.has_backward() { 2 } else { 1 };
        for slot in edges.slots() {
            let crossings = [slot.before, slot.after].into_iter().filter(|&side| side == Side::OtherRank).count();
            sizes[slot.rank] += crossings * directions * slot.microbatches;
        }
        let vocabulary = VocabularyLayers::of(plan);
        let mut awake = vec![0u64; ranks.div_ceil(64)];
        (0..ranks).for_each(|rank| awake[rank / 64] |= 1 << (rank % 64));
        Self {
            plan,
            edges,
            arrived: vec![0; edges.pairs()],
            next: vec![0; ranks],
            heads: plan.rows().iter().map(|row| row.first().copied()).collect(),
            awake,
            rows: sizes.into_iter().map(Vec::with_capacity).collect(),
            vocabulary,
            collectives: vec![0; vocabulary.collectives()],
        }
    }

    /// Gives every awake rank a turn, in rank order. Returns false if none could run.
    fn round(&mut self) -> bool {
        let mut progress = false;
        for word in 0..self.awake.len() {
            // The ranks of this word still to come. A rank woken by a lower one runs in this round, one woken by a
            // higher one in the next, as in PyTorch's loop over all ranks.
            let mut to_come = u64::MAX;
            loop {
                let bit = (self.awake[word] & to_come).trailing_zeros();
                if bit == u64::BITS {
                    break;
                }
                to_come = u64::MAX.checked_shl(bit + 1).unwrap_or(0);
                if self.turn(word * 64 + bit as usize) {
                    progress = true;
                } else {
                    self.awake[word] &= !(1 << bit);
                }
            }
        }
        progress
    }

    /// Runs one cell of a rank. Returns false if it does not fit, its inputs have not arrived or the row has ended.
    #[inline]
    fn turn(&mut self, rank: usize) -> bool {
        let Some(action) = self.heads[rank] else { return false };
        match action {
            Action::Idle => {}
            Action::Single(task) => match task.of_microbatch() {
                None => {
                    if self.slot(rank, task.stage()).is_none() {
                        return false;
                    }
                    self.rows[rank].push(action);
                }
                Some(task) if task.op().is_vocabulary() => {
                    if !self.run_vocabulary(rank, action, task) {
                        return false;
                    }
                }
                Some(task) => {
                    let Some(pair) = self.ready(rank, task) else { return false };
                    self.rows[rank].push(action);
                    self.deliver(rank, task, pair);
                }
            },
            Action::Overlap(first, second) => {
                let (Some(one), Some(other)) = (self.ready(rank, first), self.ready(rank, second)) else {
                    return false;
                };
                self.rows[rank].push(action);
                self.deliver(rank, first, one);
                self.deliver(rank, second, other);
            }
        }
        self.next[rank] += 1;
        self.heads[rank] = self.plan.row(rank).get(self.next[rank]).copied();
        true
    }

    /// Runs a piece, or passes a collective. Returns false if it does not fit, or a piece's input has not arrived.
    fn run_vocabulary(&mut self, rank: usize, action: Action, task: MicrobatchTask) -> bool {
        let fits = self.vocabulary.stage_for(task.op()) == Some(task.stage())
            && self.plan.placement().routes() == 1
            && task.microbatch() < self.plan.microbatches()[0];
        if !fits || !self.has_collective(task) {
            return false;
        }
        self.rows[rank].push(action);
        if task.op().is_rank_collective() {
            let passed = &mut self.collectives[self.vocabulary.number(task)];
            *passed += 1;
            if *passed as usize == self.next.len() {
                (0..self.next.len()).for_each(|rank| self.awake[rank / 64] |= 1 << (rank % 64));
            }
        }
        true
    }

    /// Returns true if all ranks have passed the collective that a task uses, or if it uses none.
    #[inline]
    fn has_collective(&self, task: MicrobatchTask) -> bool {
        let Some(collective) = self.vocabulary.awaited(task) else { return true };
        let passed = self.collectives.get(self.vocabulary.number(collective));
        passed.is_some_and(|&passed| passed as usize == self.next.len())
    }

    /// The dense number of a stage, if it is on this rank.
    #[inline]
    fn slot(&self, rank: usize, stage: StageId) -> Option<usize> {
        self.edges.find(stage).filter(|&slot| self.edges.slots()[slot].rank == rank)
    }

    /// The dense numbers of a task's stage and pair, if it fits and its inputs have arrived.
    #[inline]
    fn ready(&self, rank: usize, task: MicrobatchTask) -> Option<(usize, usize)> {
        let slot = self.slot(rank, task.stage())?;
        let at = &self.edges.slots()[slot];
        if task.microbatch() >= at.microbatches || !self.has_collective(task) {
            return None;
        }
        let pair = at.base + task.microbatch();
        let has_inputs = match task.op() {
            Op::Forward => at.before == Side::End || self.arrived[pair] & INPUT != 0,
            _ if self.plan.begins_backward(task) => at.after == Side::End || self.arrived[pair] & GRADIENT != 0,
            _ => true,
        };
        has_inputs.then_some((slot, pair))
    }

    /// Marks a task's value as arrived at the neighbour that uses it, and writes its transfers to other ranks.
    #[inline]
    fn deliver(&mut self, rank: usize, task: MicrobatchTask, (slot, pair): (usize, usize)) {
        let at = self.edges.slots()[slot];
        let forward = match task.op() {
            Op::Forward => true,
            Op::BackwardInput | Op::Backward => false,
            _ => return,
        };
        let (side, neighbour, its_pair, value) = if forward {
            (at.after, slot + 1, pair + at.microbatches, INPUT)
        } else {
            (at.before, slot.wrapping_sub(1), pair.wrapping_sub(at.microbatches), GRADIENT)
        };
        if side == Side::End {
            return;
        }
        let (send, receive) =
            if forward { (Op::SendForward, Op::ReceiveForward) } else { (Op::SendBackward, Op::ReceiveBackward) };
        self.arrived[its_pair] |= value;
        let microbatch = pair - at.base;
        if side == Side::OtherRank {
            let peer = self.edges.slots()[neighbour].rank;
            self.rows[rank].push(Task::new(task.stage(), send, microbatch).into());
            self.rows[peer].push(Task::new(self.edges.stage(neighbour), receive, microbatch).into());
            self.awake[peer / 64] |= 1 << (peer % 64);
        }
        // Values over skip edges, and their gradients to stages that train. No task waits for these: its neighbour's
        // value always comes later. At an end of the model no skip edge continues.
        let edges = self.edges;
        for (_, skip) in edges.crossing_skips(slot, !forward) {
            let other = if forward { skip.to } else { skip.from };
            let (stage, peer) = (task.stage(), edges.stage(other));
            if forward || peer.index() >= self.plan.first_trained() {
                self.rows[rank].push(Task::skip(stage, send, microbatch, peer.index()).into());
                self.rows[edges.slots()[other].rank].push(Task::skip(peer, receive, microbatch, stage.index()).into());
            }
        }
    }
}
