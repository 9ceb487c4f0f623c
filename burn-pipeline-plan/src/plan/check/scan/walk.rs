//! The walk over all rows: each task is checked by the rules of its kind.

use super::refusals::refusal;
use super::state::{Reduction, Refusal, Row, Scan, Shard};
use crate::plan::action::Action;
use crate::plan::check::channels::Transfers;
use crate::plan::check::error::CheckError;
use crate::plan::check::options::CheckOptions;
use crate::plan::edges::{Edges, Side};
use crate::plan::op::Op;
use crate::plan::rows::Plan;
use crate::plan::task::{MicrobatchTask, Task};
use crate::plan::vocabulary::VocabularyLayers;
use crate::plan::waits::Awaited;

/// Reads every row once. Returns the transfers of each rank in order.
pub(in crate::plan::check) fn scan_rows(
    plan: &Plan,
    edges: &Edges,
    options: &CheckOptions,
) -> Result<Transfers, Refusal> {
    let lowered = plan.is_lowered();
    let crosses = edges.slots().iter().any(|slot| slot.after == Side::OtherRank);
    let crosses = crosses || edges.skips().iter().any(|skip| skip.crosses);
    if let (false, true, Some(cap)) = (lowered, crosses, options.received_cap) {
        return Err(Box::new(CheckError::ReceivedCapUnlowered { cap }));
    }
    let (training, has_waits) = (plan.has_backward(), plan.has_waits());
    let vocabulary = VocabularyLayers::of(plan);
    let mut scan = Scan {
        plan,
        edges,
        options,
        lowered,
        training,
        events: vec![0; edges.pairs()],
        skip_events: vec![0; edges.skip_pairs()],
        skip_waits: vec![0; edges.skip_pairs()],
        awaited: if has_waits { Awaited::new(plan, edges) } else { Awaited::default() },
        waits: vec![0; if has_waits { edges.pairs() } else { 0 }],
        shards: vec![Shard::default(); edges.slots().len()],
        weights: vec![0; edges.slots().len()],
        reduced: vec![Reduction::No; edges.slots().len()],
        vocabulary,
        pieces: vec![0; if vocabulary.is_nothing() { 0 } else { plan.microbatches()[0] }],
        transfers: Transfers::new(plan, edges, training),
        row: Row::default(),
    };
    for rank in 0..plan.ranks() {
        scan.row = Row { rank, ..Row::default() };
        scan.row()?;
    }
    scan.refuse_incomplete()?;
    scan.refuse_bare()?;
    scan.refuse_unused()?;
    Ok(scan.transfers)
}

impl Scan<'_> {
    fn row(&mut self) -> Result<(), Refusal> {
        let row = self.plan.row(self.row.rank);
        for (step, &action) in row.iter().enumerate() {
            self.row.step = step;
            self.row.action = action;
            match action {
                Action::Idle => {}
                Action::Single(task) => self.task(task)?,
                Action::Overlap(first, second) => {
                    if !self.is_fusible(first, second) {
                        return Err(refusal!(self, NotFusible));
                    }
                    self.task(first.into())?;
                    self.task(second.into())?;
                }
            }
        }
        self.transfers.end_row();
        self.end_pieces()
    }

    #[inline]
    fn task(&mut self, task: Task) -> Result<(), Refusal> {
        let Some(slot) = self.edges.find(task.stage()) else { return Err(self.no_such_stage()) };
        let at = self.edges.slots()[slot];
        if task.op().is_vocabulary() {
            return self.vocabulary(task);
        }
        if at.rank != self.row.rank {
            let placed = at.rank;
            return Err(refusal!(self, WrongRank { placed }));
        }
        let Some(task) = task.of_microbatch() else { return self.whole_stage(slot, at, task) };
        if task.microbatch() >= at.microbatches {
            let microbatches = at.microbatches;
            return Err(refusal!(self, NoSuchMicrobatch { microbatches }));
        }
        let pair = at.base + task.microbatch();
        if task.is_skip() {
            return self.skip_transfer(pair, task);
        }
        match task.op() {
            op if op.is_compute() => self.compute(slot, at, pair, task),
            op if op.is_transfer() => self.transfer(slot, at, pair, task),
            _ => self.wait(slot, at, pair, task),
        }
    }
    /// Returns true for a forward and a backward of another stage or microbatch, which may be interleaved.
    fn is_fusible(&self, first: MicrobatchTask, second: MicrobatchTask) -> bool {
        let same = first.stage() == second.stage() && first.microbatch() == second.microbatch();
        first.op() == Op::Forward && self.plan.begins_backward(second) && !same
    }
}
