//! Runs rows in simulated time, and inserts the pieces of the vocabulary between their cells.
//!
//! A free rank takes the first of these that it can run:
//!
//! 1. `S`: all ranks wait for the slowest rank's.
//! 2. `IF`, up to [`AHEAD`] microbatches ahead of the first stage.
//! 3. `T` or `IB`, if the allowed number is waiting.
//! 4. The next cell of its row.
//! 5. `T` or `IB`; a patient rank leaves them if its next cell could run before they ended.
//!
//! So the pieces fill idle time, and otherwise come once per turn of the row, as in the paper's building blocks.

use crate::cost::{Costs, VocabularyCost};
use crate::plan::{Action, MicrobatchTask, Op, Plan, StageId, Task};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The number of microbatches by which `IF` may be ahead of the first stage's `F`.
const AHEAD: usize = 2;

/// The time of an event that has not happened yet.
const NEVER: f64 = f64::INFINITY;

#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    /// The number of `T` (or `IB`) that may wait before one takes precedence.
    pub(super) delay: usize,
    /// If true, a rank leaves `T` and `IB` for a cell that will be ready before they end.
    pub(super) patient: bool,
}

/// Rows with pieces, and the collectives with their end times.
#[derive(Clone, Debug)]
pub(super) struct Listing {
    pub(super) rows: Vec<Vec<Action>>,
    pub(super) collectives: Vec<(MicrobatchTask, f64)>,
    pub(super) makespan: f64,
}

/// One kind of collective: for each microbatch the number of ranks that have given their part and the last time,
/// and the ended collectives in order.
#[derive(Clone, Debug)]
struct Kind {
    given: Vec<(usize, f64)>,
    over: Vec<(usize, f64)>,
    seconds: f64,
}

/// A rank: its next cell, the time when it is free, and the number of pieces of each kind that it has run.
#[derive(Clone, Debug, Default)]
struct RankState {
    next: usize,
    free: f64,
    pieces: [usize; 4],
    row: Vec<Action>,
}

const PIECES: [Op; 4] = [Op::HeadForward, Op::HeadBackward, Op::EmbeddingForward, Op::EmbeddingBackward];

/// The state of a run.
pub(super) struct List<'a> {
    plan: &'a Plan,
    costs: &'a Costs<'a>,
    rules: Rules,
    training: bool,
    microbatches: usize,
    /// Seconds of each kind of piece.
    seconds: [f64; 4],
    kinds: [Kind; 4],
    /// The times when a stage's input, and the gradient of its output, are on its rank; by stage and microbatch.
    inputs: Vec<f64>,
    gradients: Vec<f64>,
    /// The order of the first stage's forwards, and the number that have started.
    first: Vec<usize>,
    started: usize,
    communicator: f64,
    ranks: Vec<RankState>,
    /// Times at which a rank may have something to run, earliest first. Times are not negative, so their bits have
    /// the same order.
    wakes: BinaryHeap<Reverse<(u64, usize)>>,
}

impl<'a> List<'a> {
    pub(super) fn new(plan: &'a Plan, costs: &'a Costs<'a>, pieces: VocabularyCost, rules: Rules) -> Self {
        let (microbatches, training) = (plan.microbatches()[0], plan.has_backward());
        let kind = |op| Kind {
            given: vec![(0, 0.0); microbatches],
            over: Vec::with_capacity(microbatches),
            seconds: costs.collective_seconds(op),
        };
        let values = vec![NEVER; plan.stages() * microbatches];
        let begins = |task: &Task| task.op() == Op::Forward && task.stage().index() == 0;
        let holder = plan.placement().rank_of(StageId::new(0));
        Self {
            plan,
            costs,
            rules,
            training,
            microbatches,
            seconds: PIECES.map(|op| pieces.piece_seconds(op, training)),
            kinds: Op::RANK_COLLECTIVES.map(kind),
            inputs: values.clone(),
            gradients: values,
            first: plan.tasks(holder).filter(begins).filter_map(Task::microbatch).collect(),
            started: 0,
            communicator: 0.0,
            ranks: vec![RankState::default(); plan.ranks()],
            wakes: BinaryHeap::new(),
        }
    }

    /// Runs the rows. Returns `None` if ranks wait for each other.
    pub(super) fn run(mut self, rows: &[Vec<Action>]) -> Option<Listing> {
        self.wake_all(0.0);
        while let Some(Reverse((bits, rank))) = self.wakes.pop() {
            let now = f64::from_bits(bits);
            if self.ranks[rank].free <= now {
                self.turn(rank, now, &rows[rank]);
            }
        }
        let due = |piece: usize| if self.training || piece.is_multiple_of(2) { self.microbatches } else { 0 };
        let is_done = |(state, row): (&RankState, &Vec<Action>)| {
            state.next == row.len() && (0..PIECES.len()).all(|piece| state.pieces[piece] == due(piece))
        };
        if !self.ranks.iter().zip(rows).all(is_done) {
            return None;
        }
        let makespan = self.ranks.iter().map(|state| state.free).fold(self.communicator, f64::max);
        let mut collectives = Vec::with_capacity(Op::RANK_COLLECTIVES.len() * self.microbatches);
        for (kind, op) in self.kinds.iter().zip(Op::RANK_COLLECTIVES) {
            let named =
                |&(microbatch, over): &(usize, f64)| (MicrobatchTask::new(self.stage_for(op), op, microbatch), over);
            collectives.extend(kind.over.iter().map(named));
        }
        Some(Listing { collectives, makespan, rows: self.ranks.into_iter().map(|state| state.row).collect() })
    }

    /// Runs the first possible piece or cell of a free rank, if any.
    fn turn(&mut self, rank: usize, now: f64, row: &[Action]) {
        let [head, head_weight, embedding, embedding_weight] = [0, 1, 2, 3];
        let cell = row.get(self.ranks[rank].next).copied();
        let ready = cell.map_or(NEVER, |cell| self.ready(cell));
        let due = |piece: usize| self.waiting(rank, piece, now) >= self.rules.delay;
        let fits = |piece: usize| {
            let after = now + self.seconds[piece];
            self.waiting(rank, piece, now) > 0 && (!self.rules.patient || ready == NEVER || after <= ready)
        };
        let piece = match () {
            () if self.waiting(rank, head, now) > 0 => Some(head),
            () if self.waiting(rank, embedding, now) > 0 => Some(embedding),
            () if due(head_weight) => Some(head_weight),
            () if due(embedding_weight) => Some(embedding_weight),
            () if ready <= now => None,
            () => [head_weight, embedding_weight].into_iter().find(|&piece| fits(piece)),
        };
        match (piece, cell) {
            (Some(piece), _) => self.run_piece(rank, piece, now),
            (None, Some(cell)) if ready <= now => self.run_cell(rank, cell, now),
            _ => {}
        }
    }

    /// The number of pieces of a kind that a rank could run now.
    fn waiting(&self, rank: usize, piece: usize, now: f64) -> usize {
        let run = self.ranks[rank].pieces[piece];
        if PIECES[piece] == Op::EmbeddingForward {
            return self.first.len().min(self.started + AHEAD).saturating_sub(run);
        }
        if PIECES[piece] != Op::HeadForward && !self.training {
            return 0;
        }
        self.queue(piece)[run..].iter().take(self.rules.delay).filter(|(_, over)| *over <= now).count()
    }

    /// The collectives that a kind of piece waits for, in order.
    fn queue(&self, piece: usize) -> &[(usize, f64)] {
        // `S` waits for `BCAST_S`, `T` for `REDUCE_S`, `IB` for `BCAST_IB`: pieces and collectives are numbered
        // alike.
        &self.kinds[piece].over
    }

    /// The time when a cell's inputs are available.
    fn ready(&self, cell: Action) -> f64 {
        let needs = cell.tasks().filter_map(|task| task.of_microbatch()).map(|task| match task.op() {
            Op::Forward => self.inputs[self.at(task.stage(), task.microbatch())],
            _ if self.plan.begins_backward(task) => self.gradients[self.at(task.stage(), task.microbatch())],
            _ => 0.0,
        });
        needs.fold(0.0, f64::max)
    }

    fn run_piece(&mut self, rank: usize, piece: usize, now: f64) {
        let (op, end) = (PIECES[piece], now + self.seconds[piece]);
        let run = self.ranks[rank].pieces[piece];
        let microbatch = if op == Op::EmbeddingForward { self.first[run] } else { self.queue(piece)[run].0 };
        self.ranks[rank].pieces[piece] += 1;
        self.occupy(rank, MicrobatchTask::new(self.stage_for(op), op, microbatch).into(), end);
        match op {
            Op::HeadForward => self.give(Op::ReduceHead, microbatch, end),
            Op::EmbeddingForward => self.give(Op::ReduceEmbedding, microbatch, end),
            _ => {}
        }
    }

    fn run_cell(&mut self, rank: usize, cell: Action, now: f64) {
        let end = now + self.costs.action_seconds(cell);
        self.ranks[rank].next += 1;
        self.occupy(rank, cell, end);
        for task in cell.tasks().filter_map(|task| task.of_microbatch()) {
            let (stage, microbatch) = (task.stage(), task.microbatch());
            match (task.op(), self.plan.placement().next(stage), stage.previous()) {
                (Op::Forward, next, before) => {
                    if before.is_none() {
                        self.started += 1;
                        self.wake_all(now);
                    }
                    match next {
                        Some(next) => self.deliver(stage, next, microbatch, end, true),
                        None => self.give(Op::BroadcastHidden, microbatch, end),
                    }
                }
                (Op::Backward | Op::BackwardInput, _, Some(before)) => {
                    self.deliver(stage, before, microbatch, end, false);
                }
                (Op::Backward | Op::BackwardInput, _, None) => self.give(Op::BroadcastGradient, microbatch, end),
                _ => {}
            }
        }
    }

    fn occupy(&mut self, rank: usize, action: Action, end: f64) {
        let state = &mut self.ranks[rank];
        state.row.push(action);
        state.free = end;
        self.wake(rank, end);
    }

    fn deliver(&mut self, from: StageId, to: StageId, microbatch: usize, made: f64, forward: bool) {
        let placement = self.plan.placement();
        let (source, target) = (placement.rank_of(from), placement.rank_of(to));
        let arrived = made + self.costs.crossing_seconds(source, target, if forward { from } else { to });
        let at = self.at(to, microbatch);
        let table = if forward { &mut self.inputs } else { &mut self.gradients };
        table[at] = arrived;
        self.wake(target, arrived);
    }

    /// Adds a rank's part to a collective, which begins once all parts have been added.
    fn give(&mut self, op: Op, microbatch: usize, end: f64) {
        let parts = if matches!(op, Op::ReduceHead | Op::ReduceEmbedding) { self.ranks.len() } else { 1 };
        let kind = &mut self.kinds[op as usize - Op::BroadcastHidden as usize];
        let (given, last) = &mut kind.given[microbatch];
        (*given, *last) = (*given + 1, last.max(end));
        if *given < parts {
            return;
        }
        let over = last.max(self.communicator) + kind.seconds;
        kind.over.push((microbatch, over));
        self.communicator = over;
        match op {
            Op::ReduceHead => {
                let at = self.at(self.stage_for(op), microbatch);
                self.gradients[at] = over;
            }
            Op::ReduceEmbedding => {
                let at = self.at(self.stage_for(op), microbatch);
                self.inputs[at] = over;
            }
            _ => {}
        }
        self.wake_all(over);
    }

    /// The stage that a vocabulary operation names.
    fn stage_for(&self, op: Op) -> StageId {
        StageId::new(if op.is_of_head() { self.plan.stages() - 1 } else { 0 })
    }

    fn at(&self, stage: StageId, microbatch: usize) -> usize {
        stage.index() * self.microbatches + microbatch
    }

    fn wake(&mut self, rank: usize, time: f64) {
        self.wakes.push(Reverse((time.to_bits(), rank)));
    }

    fn wake_all(&mut self, time: f64) {
        (0..self.ranks.len()).for_each(|rank| self.wake(rank, time));
    }
}
