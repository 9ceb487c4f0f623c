//! Memory of one rank over time.
//!
//! 1. Activations: all bytes from the start of `F`; the part that `I` frees goes at its end, the rest at the end of
//!    `W` (or everything at the end of `B`). What a stage recomputes is there while `F` runs, and again from
//!    the start of `I` or `B`. In a plan
//!    without backwards they go at the end of `F`.
//! 2. Receive buffers: from the start of a message's transfer to the end of the action that uses it.
//! 3. Send buffers: from a send to its wait, where it has one of its own (else it is over when its cell is).
//! 4. Parameters and optimizer state: the stages' own during the whole step; unsharded parameters from `UNSHARD` to
//!    `RESHARD`.
//! 5. Gradients of the weights: the sum from the start of the first `W` (or `B`) on, and the microbatch's own while each
//!    later one runs. At the end of `REDUCE_GRAD` what the rank does not keep goes.
//!
//! Changes are noted in the rank's running order and sorted by time with ties left in that order, so a release and
//! the allocation that follows it at the same instant do not add up.

/// What a rank holds from one instant on, in bytes, until the next point.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct MemoryPoint {
    /// Seconds from the start of the step.
    pub time: f64,
    /// Activations kept for backwards.
    pub activations: f64,
    /// Messages received or being received, not yet used up.
    pub receive_buffers: f64,
    /// Messages sent whose wait is still to come.
    pub send_buffers: f64,
    /// Gathered parameters, beside the stages' own.
    pub unsharded: f64,
    /// Gradients of weights.
    pub gradients: f64,
}

impl MemoryPoint {
    /// All of it, without the parameters and the optimizer state that are always there.
    pub fn total(&self) -> f64 {
        self.activations + self.receive_buffers + self.send_buffers + self.unsharded + self.gradients
    }
}

/// What a change is about.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Held {
    Activations,
    ReceiveBuffers,
    SendBuffers,
    Unsharded,
    Gradients,
}

/// Changes of one rank, in running order.
#[derive(Clone, Debug, Default)]
pub(super) struct Ledger {
    changes: Vec<(f64, Held, f64)>,
    live: i64,
    most_live: i64,
}

impl Ledger {
    /// Notes that `bytes` more (or fewer) are held from `time` on.
    pub(super) fn change(&mut self, time: f64, held: Held, bytes: f64) {
        if bytes != 0.0 {
            self.changes.push((time, held, bytes));
        }
    }

    /// Notes one live activation more; called in running order.
    pub(super) fn activate(&mut self) {
        self.live += 1;
        self.most_live = self.most_live.max(self.live);
    }

    /// Notes one live activation fewer.
    pub(super) fn release(&mut self) {
        self.live -= 1;
    }

    /// The largest number of activations that were live at once.
    pub(super) fn most_live(&self) -> i64 {
        self.most_live
    }

    /// The curve: one point a change of level.
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
            }
            curve.push(now);
        }
        curve
    }
}
