//! Options of runs.

use crate::stage::PROGRAMS;
use std::time::Duration;

/// Options of runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunOptions {
    /// The timeout of every wait.
    pub timeout: Duration,
    pub tuning: Tuning,
    /// The most bytes that the plan was predicted to take on this rank.
    pub predicted: Option<u64>,
    /// True if training runs compute gradients of the batch.
    pub input_gradients: bool,
}

/// How stages run. No choice changes numbers, except for `merge_weights`, which adds in another order, and
/// `record_every`, if its condition does not hold. All ranks must have the same, except for `synchronize`.
///
/// ```
/// use burn_pipeline::execute::Tuning;
/// use burn_pipeline::train::Pipeline;
/// let tuning = Tuning { record_every: 64, ..Tuning::default() };
/// let builder = Pipeline::builder().tuning(tuning);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tuning {
    /// Runs adjacent `W`s of one stage at once: each weight-gradient matmul of a captured stage's linear layers then
    /// covers the rows of several microbatches, whenever that moves fewer bytes (many short microbatches, wide layers).
    /// Sums are added in another order, so gradients differ by rounding; building fails with
    /// [`Accumulation::Ordered`](crate::Accumulation::Ordered) and with
    /// [`Builder::matmuls`](crate::Builder::matmuls). Off by default.
    pub merge_weights: bool,
    /// How fused actions (`OVERLAP_F_B`, as in DualPipe) run.
    pub fused: FusedActions,
    /// How many programs each captured stage keeps, 64 by default, at least 1. There is one for each shape of its
    /// inputs and each combination of values that its forward reads from the host. The least recently used program is
    /// dropped, and captured again if needed (see [`SplitBackward`](crate::stage::SplitBackward) for the cost). The
    /// limit does not change numbers.
    pub captured_programs: usize,
    /// How many forwards of a captured stage share one recording, 1 by default: each is recorded. A recording runs the
    /// stage's code on the host and computes nothing (see [`SplitBackward`](crate::stage::SplitBackward) for the cost);
    /// it pays to have fewer where stages compute for a short time: recurrent layers, small stages, fast devices.
    ///
    /// A larger number is for stages and losses that run the same operations in the same order for the same shapes:
    /// they read nothing from the host that changes (no counter, annealed field or coin), and hold no tensor outside
    /// a `Param` that changes. Parameters may change, and random numbers are drawn anew if drawn on the input's
    /// device (`x.device()`). A forward that is given a plain value of the batch, or asks for its microbatch
    /// ([`ForwardContext::microbatch`](crate::layers::ForwardContext::microbatch)), is always recorded. What a forward
    /// only writes, such as a count of its calls, is written by recorded forwards alone.
    ///
    /// For each shape, every n-th forward is recorded and compared with the recording that the others ran, if that is
    /// still kept. If it differs, the call fails with
    /// [`StageError::Changed`](crate::stage::StageError::Changed). Earlier steps may have run the old recording, so
    /// build the pipeline anew with `record_every: 1`, and load a checkpoint from before them.
    pub record_every: usize,
    /// Keeps the outputs of stages until their backward, as a plain autodiff loop does, instead of releasing them after
    /// they were sent. For measuring the memory that the release saves. Off by default.
    pub keep_outputs: bool,
    /// Waits for the device after every task, so that timelines show the tasks' time on the device. For profiling. Off
    /// by default.
    pub synchronize: bool,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            merge_weights: false,
            fused: FusedActions::default(),
            captured_programs: PROGRAMS,
            record_every: 1,
            keep_outputs: false,
            synchronize: false,
        }
    }
}

/// How an action that fuses a forward with a backward (`OVERLAP_F_B`) is run.
///
/// Interleaving first awaits the inputs of both parts. It then submits their operations to the device alternately,
/// from one thread, so both parts end together. Results are bitwise equal to running one part after the other. A
/// device that computes asynchronously can then fill the waits of one part (communication inside a layer, small
/// kernels) with work of the other. DualPipe requires the model's author to write this
/// (`overlapped_forward_backward`); here it works for every captured stage. Stages that were not captured run one
/// after the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FusedActions {
    /// Interleaved on CubeCL devices, which compute asynchronously, in sequence elsewhere.
    #[default]
    Auto,
    /// One after the other, in the plan's order.
    Sequence,
    /// Interleaved wherever both stages were captured.
    Interleave,
}
