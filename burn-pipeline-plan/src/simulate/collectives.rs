//! Collectives of a stage (`UNSHARD`, `RESHARD`, `REDUCE_GRAD`) and the waits for them.
//!
//! 1. A collective starts as soon as its rank reaches it. Its members are data-parallel replicas, which the plan does
//!    not show.
//! 2. Without overlap, it blocks its rank. With overlap, or with a wait, `UNSHARD` and `REDUCE_GRAD` run one after the
//!    other on a lane beside the computations.

use super::memory::MemoryKind;
use super::report::IdleCause;
use super::state::Engine;
use crate::plan::{Op, Task};
use crate::trace::Event;

impl Engine<'_> {
    /// Runs a collective or a wait for one. Returns false if the collective's end is not known yet.
    pub(super) fn run_whole_stage(&mut self, rank: usize, task: Task) -> bool {
        let slot = self.plan.placement().slot(task.stage());
        let over = match task.op() {
            Op::WaitUnshard => self.unsharded[slot],
            Op::WaitReduceGrad => self.reduced[slot],
            _ => {
                self.collective(rank, task);
                return true;
            }
        };
        let Some(over) = over else { return false };
        self.stand(rank, task, over, over, IdleCause::Transfer);
        true
    }

    /// Runs `UNSHARD`, `RESHARD` or `REDUCE_GRAD`.
    fn collective(&mut self, rank: usize, task: Task) {
        let (stage, seconds) = (task.stage(), self.costs.task_seconds(task));
        let (slot, bytes) = (self.plan.placement().slot(stage), self.costs.stage(stage).unsharded_bytes);
        let aside = self.runs_beside(rank) && task.op() != Op::Reshard;
        let state = &mut self.ranks[rank];
        let start = if aside { state.clock.max(state.lane) } else { state.clock };
        let end = start + seconds;
        *(if aside { &mut state.lane } else { &mut state.clock }) = end;
        match (task.op(), self.unsharded[slot]) {
            (Op::Unshard, None) => {
                state.memory.change(start, MemoryKind::Unsharded, bytes);
                self.unsharded[slot] = Some(end);
            }
            (Op::Reshard, Some(_)) => {
                state.memory.change(start, MemoryKind::Unsharded, -bytes);
                self.unsharded[slot] = None;
            }
            (Op::ReduceGrad, _) => {
                let cost = self.costs.stage(stage);
                let kept = cost.reduced_gradient_bytes.unwrap_or(cost.gradient_bytes);
                state.memory.change(end, MemoryKind::Gradients, kept - cost.gradient_bytes);
                self.reduced[slot] = Some(end);
            }
            _ => {}
        }
        self.events.push(Event { rank, action: task.into(), start, end });
    }
}
