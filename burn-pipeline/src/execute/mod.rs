//! The executor: runs one rank's row of a checked plan.
//!
//! Guarantees: tasks run in the plan's order and in no other; a receive is posted where the plan says and
//! awaited where its value is used; every value is moved, used once, and gone; only a [`CheckedPlan`] is taken,
//! so nothing here can deadlock (see the README beside this file); a panic in user code, a refusal, or a lost
//! peer ends the run of every rank with an error that names it.
//!
//! 1. [`Executor::run`] walks the rank's tasks. `F` takes its input from the batch (first stage) or the inbox.
//! 2. What a task produces goes to the inbox (next stage on this rank: moved, not copied) or the outbox.
//! 3. `SEND_*` hands the outbox's value to the link; `RECV_*` notes that it is to come.
//! 4. A task whose input is not in the inbox takes messages off the link, in the order in which the plan posted
//!    their receives, until it has its own.
//! 5. `WAIT_RECV_*` does the same where it stands, so that its task finds the value in the inbox; without one, the task
//!    itself waits. `WAIT_SEND_*` finds its send over: a link's send returns once its payload may be let go of, which a
//!    link that sends in the background has to keep to by holding the payload itself.
//! 6. Fused actions may be interleaved, and `W`s that stand side by side run at once, where the user chose that.
//! 7. `REDUCE_GRAD` sends data-parallel replicas their pieces of a stage's gradients, and the row goes on; sums are made as
//!    pieces come, and what is still under way when the row is done is waited for then. The timeline shows the whole of
//!    it as one event, and what was waited for as `WAIT_REDUCE_GRAD`; the same with `UNSHARD`.
//! 8. The loss of a stage that ends its route is kept on the device, and read once the row is done.

mod arrivals;
mod declared;
mod error;
mod inspect;
mod interleave;
mod interpreter;
mod losses;
mod replicas;
mod row;
mod run;
mod run_state;
mod skips;
mod values;

pub(crate) use declared::expected_messages;
pub use error::{ExecuteError, HandshakeError};
pub use inspect::{RecordedSpecs, SpecCheck};
pub use interpreter::Executor;
pub(crate) use interpreter::panic_message;
pub use run::{FusedActions, ReplicaShare, Run, RunOptions};

use crate::plan::StageId;
use crate::stage::{Microbatches, Payload, Reduction};
use crate::trace::Event;
use std::collections::BTreeMap;

#[cfg(doc)]
use crate::plan::CheckedPlan;

/// How a microbatch's backward is seeded so that the sum over microbatches is the batch's gradient, up to one
/// factor at the end; see [`Reduction`].
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Seeding {
    /// What the user's loss is.
    pub reduction: Reduction,
    /// Samples of the microbatch whose backward is seeded with 1.
    pub reference_samples: usize,
}

impl Seeding {
    /// The seed of one microbatch's loss.
    pub fn seed(&self, batch: &Microbatches, index: usize) -> f64 {
        match self.reduction {
            Reduction::Mean => batch.size(index) as f64 / self.reference_samples as f64,
            Reduction::Sum | Reduction::Weighted => 1.0,
        }
    }
}

/// One microbatch's loss, read from the device.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct MicrobatchLoss {
    /// The microbatch, numbered over the whole batch.
    pub index: usize,
    /// What the stage's loss function returned.
    pub loss: f64,
    /// What it weighs in the batch's loss (samples, 1, or the weight that the loss function gave).
    pub weight: f64,
}

/// What one rank's run gave.
#[derive(Debug, Default)]
pub struct RankOutcome {
    /// Losses of the whole batch, the same on every rank, by microbatch.
    pub losses: Vec<MicrobatchLoss>,
    /// Numbers that the loss function wants observed, the same on every rank, by microbatch.
    pub observed: Vec<Vec<f64>>,
    /// Outputs of the last stage, by microbatch, where an evaluation ended on this rank.
    pub outputs: Vec<(usize, Payload)>,
    /// What was done when, by the step's clock.
    pub events: Vec<Event>,
    /// Bytes that each stage of this rank handed on, for its largest microbatch.
    pub message_bytes: BTreeMap<StageId, usize>,
    /// Bytes of the largest value that each stage of this rank handed past the next one.
    pub skip_bytes: BTreeMap<StageId, usize>,
    /// The largest number of microbatches held at once between forward and the end of backward, over all stages.
    pub peak_held: usize,
    /// The most bytes held at once between forward and the end of backward, parameters not counted; `None` if some
    /// stage's engine could not tell.
    pub peak_held_bytes: Option<usize>,
}
