//! The eight steps of DualPipe and DualPipeV on one rank.
//!
//! Chunk 0 is the stage that this rank's microbatches reach first, chunk 1 the one they reach last. `depth` is the
//! number of ranks between an entry and the turn (p on a V, p/2 where two directions meet), and `hop` this rank's
//! distance from the entry. With n microbatches through each chunk (n >= 2 depth):
//!
//! 1. `2(depth-hop-1)` times F0.
//! 2. `hop+1` times F0, F1.
//! 3. `depth-hop-1` times I1, its W, F1.
//! 4. `n - 2 depth + hop + 1` times F0 with B1, F1 with B0, each pair fused. At the turn, the first F0 and B1 are
//!    not fused, since a fused F0 would wait for that B1's gradient.
//! 5. `depth-hop-1` times B1, F1 with B0.
//! 6. `hop+1` times B1, B0; from the middle on, I with its W queued.
//! 7. `depth-hop-1` times the oldest W, I0.
//! 8. The remaining `hop+1` W.
//!
//! Source: DeepSeek-AI, DualPipe (2025); the V form also PyTorch 2.15's `ScheduleDualPipeV`.

use crate::plan::{Action, MicrobatchTask, Op, StageId};
use std::collections::VecDeque;

/// Writes one rank's row.
struct Writer {
    stages: [StageId; 2],
    forwards: [usize; 2],
    backwards: [usize; 2],
    waiting: VecDeque<MicrobatchTask>,
    row: Vec<Action>,
}

impl Writer {
    fn forward(&mut self, chunk: usize) -> MicrobatchTask {
        self.forwards[chunk] += 1;
        MicrobatchTask::new(self.stages[chunk], Op::Forward, self.forwards[chunk] - 1)
    }

    fn backward(&mut self, chunk: usize) -> MicrobatchTask {
        self.backwards[chunk] += 1;
        MicrobatchTask::new(self.stages[chunk], Op::Backward, self.backwards[chunk] - 1)
    }

    fn put_forward(&mut self, chunk: usize) {
        let task = self.forward(chunk);
        self.row.push(task.into());
    }

    fn put_fused(&mut self, forward: usize, backward: usize) {
        let (forward, backward) = (self.forward(forward), self.backward(backward));
        self.row.push(Action::Overlap(forward, backward));
    }

    /// Writes the whole backward, or `I` with its `W` queued.
    fn put_backward(&mut self, chunk: usize, split: bool) {
        let task = self.backward(chunk);
        if split {
            self.row.push(task.with(task.stage(), Op::BackwardInput).into());
            self.waiting.push_back(task.with(task.stage(), Op::BackwardWeight));
        } else {
            self.row.push(task.into());
        }
    }

    fn put_weight(&mut self) {
        self.row.extend(self.waiting.pop_front().map(Action::from));
    }
}

/// The row of the rank `hop` hops from the entry.
pub(super) fn row(stages: [StageId; 2], depth: usize, hop: usize, microbatches: usize) -> Vec<Action> {
    let (before_turn, from_entry) = (depth - hop - 1, hop + 1);
    let row = Vec::with_capacity(6 * microbatches);
    let mut to = Writer { stages, forwards: [0; 2], backwards: [0; 2], waiting: VecDeque::new(), row };
    for _ in 0..2 * before_turn {
        to.put_forward(0);
    }
    for _ in 0..from_entry {
        to.put_forward(0);
        to.put_forward(1);
    }
    for _ in 0..before_turn {
        to.put_backward(1, true);
        to.put_weight();
        to.put_forward(1);
    }
    for i in 0..microbatches - 2 * depth + from_entry {
        if i == 0 && before_turn == 0 {
            to.put_forward(0);
            to.put_backward(1, false);
        } else {
            to.put_fused(0, 1);
        }
        to.put_fused(1, 0);
    }
    for _ in 0..before_turn {
        to.put_backward(1, false);
        to.put_fused(1, 0);
    }
    for i in 0..from_entry {
        let middle = from_entry / 2;
        to.put_backward(1, i > middle || (i == middle && hop % 2 == 1));
        to.put_backward(0, i >= middle);
    }
    for _ in 0..before_turn {
        to.put_weight();
        to.put_backward(0, true);
    }
    for _ in 0..from_entry {
        to.put_weight();
    }
    to.row
}
