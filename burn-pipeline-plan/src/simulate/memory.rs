//! Memory of one rank over time.
//!
//! 1. Activations: held from the start of `F`. `I` frees its part at its end, `W` the rest at its end, and `B` all of
//!    them at its end. In a stage without a backward, `F` frees them at its end; where `W` is the whole backward, it
//!    counts as `B`.
//! 2. Recomputed activations: held while `F` runs, and again from the start of `I` or `B` until the activations are
//!    freed.
//! 3. Receive buffers: held from the start of a message's transfer (or from when the value was made, if it stays on its
//!    rank) to the end of the action that uses it. They count for the receiving rank.
//! 4. Send buffers: held from a send to its wait, if it has one. A send without a wait is over at its end.
//! 5. Parameters and optimizer state of the stages: held during the whole step. Unsharded parameters: held from
//!    `UNSHARD` to `RESHARD`.
//! 6. Gradients of the weights: the sum is held from the start of the first `W` (or `B`) on, and one microbatch's own
//!    gradients while each later `W` or `B` runs. `REDUCE_GRAD` frees the part that the rank does not keep at its end.
//! 7. If the peak of an action is known (`StageCost::forward_peak_bytes` and similar), it replaces all memory of the
//!    action's microbatch while the action runs: activations, the message that it uses, gradients not added yet.
//!
//! The caller's memory (the batch) does not count.
//!
//! Changes are recorded in the rank's running order and sorted by time; equal times keep that order. So memory that is
//! released before an allocation at the same instant does not count together with it.

/// The bytes that a rank holds from `time` until the next point.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct MemoryPoint {
    /// Seconds from the start of the step.
    pub time: f64,
    /// Activations kept for backwards.
    pub activations: f64,
    /// Messages received, or being received, and not yet used.
    pub receive_buffers: f64,
    /// Messages sent whose wait has not run yet.
    pub send_buffers: f64,
    /// Gathered parameters, without the rank's own shards.
    pub unsharded: f64,
    /// Gradients of weights.
    pub gradients: f64,
    /// All memory of the microbatch of a running action whose peak is known.
    pub running: f64,
}

impl MemoryPoint {
    /// The sum, without parameters and optimizer state, which do not change during a step.
    pub fn total(&self) -> f64 {
        self.activations + self.receive_buffers + self.send_buffers + self.unsharded + self.gradients + self.running
    }
}

/// The kind of memory that a change belongs to.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum MemoryKind {
    Activations,
    ReceiveBuffers,
    SendBuffers,
    Unsharded,
    Gradients,
    Running,
}

/// The changes of one rank's memory, in running order.
#[derive(Clone, Debug, Default)]
pub(super) struct Ledger {
    changes: Vec<(f64, MemoryKind, f64)>,
    live: i64,
    most_live: i64,
}

impl Ledger {
    /// Records that the rank holds `bytes` more (fewer if negative) from `time` on.
    pub(super) fn change(&mut self, time: f64, kind: MemoryKind, bytes: f64) {
        if bytes != 0.0 {
            self.changes.push((time, kind, bytes));
        }
    }

    /// Records one more live activation; called in running order.
    pub(super) fn activate(&mut self) {
        self.live += 1;
        self.most_live = self.most_live.max(self.live);
    }

    /// Records that one activation is no longer live.
    pub(super) fn release(&mut self) {
        self.live -= 1;
    }

    /// The largest number of activations that were live at once.
    pub(super) fn most_live(&self) -> i64 {
        self.most_live
    }

    /// Memory over time, with one point for each change.
    pub(super) fn curve(mut self) -> Vec<MemoryPoint> {
        self.changes.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut now = MemoryPoint::default();
        let mut curve = Vec::with_capacity(self.changes.len());
        for (time, kind, bytes) in self.changes {
            now.time = time;
            match kind {
                MemoryKind::Activations => now.activations += bytes,
                MemoryKind::ReceiveBuffers => now.receive_buffers += bytes,
                MemoryKind::SendBuffers => now.send_buffers += bytes,
                MemoryKind::Unsharded => now.unsharded += bytes,
                MemoryKind::Gradients => now.gradients += bytes,
                MemoryKind::Running => now.running += bytes,
            }
            curve.push(now);
        }
        curve
    }
}
