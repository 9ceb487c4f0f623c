//! Memory of one rank over time.
//!
//! 1. Activations: held from the start of `F`. `I` frees its part at its end, `W` the rest at its end, and `B` all of them
//!    at its end. In a plan without backwards `F` frees them at its end.
//! 2. Recomputed activations: held while `F` runs, and again from the start of `I` or `B` until the activations go.
//! 3. Receive buffers: held from the start of a message's transfer to the end of the action that uses it; a value that stays on
//!    its rank, from when it was made.
//! 4. Send buffers: held from a send to its wait, if it has one. A send without a wait is over at its end.
//! 5. Parameters and optimizer state of the stages: held during the whole step. Unsharded parameters: held from
//!    `UNSHARD` to `RESHARD`.
//! 6. Gradients of the weights: the sum is held from the start of the first `W` (or `B`) on, and one microbatch's own
//!    gradients while each later one runs. `REDUCE_GRAD` frees at its end what the rank does not keep.
//!
//! 7. While an action runs whose peak is known (`StageCost::forward_peak_bytes` and its like), that peak stands for all that
//!    its microbatch holds: activations, the message that it uses, gradients that are not added yet.
//!
//! A message is on the account of the rank that receives it, from when it is sent. What the caller holds (the batch) is on no
//! rank's account.
//!
//! Changes are recorded in the rank's running order and sorted by time; equal times keep that order. So an allocation does
//! not add to what is released before it at the same instant.

/// What a rank holds from one instant to the next point, in bytes.
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
    /// Gathered parameters, beside the shards that stay.
    pub unsharded: f64,
    /// Gradients of weights.
    pub gradients: f64,
    /// All that the microbatch of a running action holds, where the action's peak is known.
    pub running: f64,
}

impl MemoryPoint {
    /// The sum, without parameters and optimizer state, which do not change during a step.
    pub fn total(&self) -> f64 {
        self.activations + self.receive_buffers + self.send_buffers + self.unsharded + self.gradients + self.running
    }
}

/// What a change of memory belongs to.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Held {
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
    changes: Vec<(f64, Held, f64)>,
    live: i64,
    most_live: i64,
}

impl Ledger {
    /// Records that the rank holds `bytes` more (or fewer) from `time` on.
    pub(super) fn change(&mut self, time: f64, held: Held, bytes: f64) {
        if bytes != 0.0 {
            self.changes.push((time, held, bytes));
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
        for (time, held, bytes) in self.changes {
            now.time = time;
            match held {
                Held::Activations => now.activations += bytes,
                Held::ReceiveBuffers => now.receive_buffers += bytes,
                Held::SendBuffers => now.send_buffers += bytes,
                Held::Unsharded => now.unsharded += bytes,
                Held::Gradients => now.gradients += bytes,
                Held::Running => now.running += bytes,
            }
            curve.push(now);
        }
        curve
    }
}
