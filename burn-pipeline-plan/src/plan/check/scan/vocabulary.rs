//! Pieces of the head and the embedding, and their collectives: each once on every rank, after its inputs there.

use super::refusals::{missing, refusal};
use super::state::{F, I, Refusal, Scan};
use crate::plan::check::channels::Part;
use crate::plan::op::Op;
use crate::plan::task::{MicrobatchTask, Task};

fn bit(op: Op) -> u8 {
    1 << (op as u8 - Op::HeadForward as u8)
}

/// Returns true for an operation that exists only in training.
fn is_about_gradient(op: Op) -> bool {
    matches!(op, Op::HeadBackward | Op::EmbeddingBackward | Op::BroadcastGradient)
}

impl Scan<'_> {
    /// Checks a piece or a collective.
    pub(super) fn vocabulary(&mut self, task: Task) -> Result<(), Refusal> {
        if self.plan.placement().routes() > 1 {
            return Err(refusal!(self, VocabularyRoutes));
        }
        let (Some(stage), Some(task)) = (self.vocabulary.stage_for(task.op()), task.of_microbatch()) else {
            return Ok(());
        };
        if task.stage() != stage {
            return Err(refusal!(self, VocabularyStage { stage }));
        }
        if task.microbatch() >= self.pieces.len() {
            let microbatches = self.pieces.len();
            return Err(refusal!(self, NoSuchMicrobatch { microbatches }));
        }
        if is_about_gradient(task.op()) && !self.training {
            return Err(refusal!(self, NoBackward));
        }
        self.refuse_twice(self.pieces[task.microbatch()] & bit(task.op()), task)?;
        if task.op().is_piece() {
            self.use_collective(task)?;
        } else {
            self.start_collective(task)?;
        }
        self.pieces[task.microbatch()] |= bit(task.op());
        Ok(())
    }

    fn start_collective(&mut self, task: MicrobatchTask) -> Result<(), Refusal> {
        let holds = self.plan.placement().rank_of(task.stage()) == self.row.rank;
        if let Some(given) = self.vocabulary.given(task, holds) {
            let computed =
                || self.edges.find(given.stage()).map(|slot| self.edges.slots()[slot].base + given.microbatch());
            let done = match given.op() {
                Op::Forward => computed().is_some_and(|pair| self.events[pair] & F != 0),
                Op::Backward => computed().is_some_and(|pair| self.events[pair] & I != 0),
                op => self.pieces[task.microbatch()] & bit(op) != 0,
            };
            self.require(u8::from(done), task, given.op(), 0)?;
        }
        if self.lowered {
            self.transfers.push_collective(self.vocabulary.number(task), Part::Start);
        }
        Ok(())
    }

    /// Refuses a computation if the collective that it needs has not been started.
    #[inline]
    pub(super) fn use_collective(&mut self, task: MicrobatchTask) -> Result<(), Refusal> {
        let Some(collective) = self.vocabulary.awaited(task) else { return Ok(()) };
        self.require(self.pieces[task.microbatch()] & bit(collective.op()), task, collective.op(), 0)?;
        if self.lowered {
            self.transfers.push_collective(self.vocabulary.number(collective), Part::Wait);
        }
        Ok(())
    }

    /// Ends a row: every microbatch must have all operations. Resets the bits for the next row.
    pub(super) fn end_pieces(&mut self) -> Result<(), Refusal> {
        let due = |op: Op| self.vocabulary.stage_for(op).is_some() && (self.training || !is_about_gradient(op));
        for (microbatch, done) in self.pieces.iter().enumerate() {
            let mut ops = Op::ALL.into_iter().filter(|op| op.is_vocabulary());
            let absent = ops.find(|&op| due(op) && done & bit(op) == 0);
            if let Some((op, stage)) = absent.and_then(|op| Some((op, self.vocabulary.stage_for(op)?))) {
                return Err(missing(self.plan, self.row.rank, Task::new(stage, op, microbatch)));
            }
        }
        self.pieces.fill(0);
        Ok(())
    }
}
