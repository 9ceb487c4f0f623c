//! How a stage's backward is split: what is asked for, which engine runs the stage, and what it measured.

/// How stages split their backwards into `I` (gradients of the input) and `W` (gradients of the weights).
///
/// Whatever the choice, loss, gradients and weights are the same numbers; only time and memory differ. A *captured* stage
/// is recorded once for each shape of its inputs as a list of operations, which is replayed for every microbatch: `I` then
/// computes the input's gradients and nothing else. `Pipeline::engines` reports which stages are captured, and why others
/// are not.
///
/// A stage cannot be captured if its forward
///
/// - reads values of tensors (`into_scalar`, control flow on them),
/// - changes buffers (batch norm's running statistics),
/// - uses a tensor that is not its input, extra, target or parameter, or
/// - runs an operation that Burn's capture does not know.
///
/// Such a refusal is found by trying, and ends in a panic that is caught; the process's panic hook may print it. A stage
/// that implements [`Stage::skip_capture`](crate::stage::Stage::skip_capture) is not tried. Effects of a forward outside
/// tensors (counters, files) cannot be detected: they happen once for each capture and not in a replay, so such stages need
/// [`SplitBackward::Eager`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SplitBackward {
    /// Captured if the plan runs `I` and `W` on the stage and the stage can be captured; otherwise as `Eager`.
    #[default]
    Auto,
    /// Burn's autodiff: `I` computes both kinds of gradients and `W` only adds those of the weights, except for layers that
    /// defer theirs (see [`DeferredForward`](crate::ops::DeferredForward)).
    Eager,
    /// Captured, whatever the plan; a stage that cannot be captured is an error with the reason.
    Captured,
}

/// How much of a stage's weight gradients its `I` leaves to its `W`, measured on one microbatch.
///
/// A parameter counts as deferred if no part of its gradient is computed in `I`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeferredShare {
    /// Operations that left weight gradients for `W`.
    pub operations: usize,
    /// Elements of the parameters whose gradient was deferred.
    pub elements: usize,
    /// Elements of all parameters that got a gradient.
    pub of: usize,
}

impl DeferredShare {
    /// Deferred elements over all, between 0 and 1; 0 where there are no parameters.
    pub fn share(&self) -> f64 {
        self.elements as f64 / self.of.max(1) as f64
    }
}

/// The way a stage's forwards and backwards are run, and the reason for it.
#[derive(Clone, Debug)]
pub struct EngineReport {
    /// Are they run from programs that were captured once and are replayed? Else by Burn's autodiff.
    pub captured: bool,
    /// The reason for it.
    pub reason: String,
    /// What deferred operations left for `W`; `None` before the first `W`, in a plan that does not split, and for a
    /// captured stage.
    pub deferred: Option<DeferredShare>,
    /// The programs of a captured stage, one for each shape of its inputs.
    pub programs: Vec<std::sync::Arc<crate::program::StagePrograms>>,
}

impl EngineReport {
    /// The report of a stage that Burn's autodiff runs.
    pub fn eager(reason: impl Into<String>) -> Self {
        Self { captured: false, reason: reason.into(), deferred: None, programs: Vec::new() }
    }
}

/// Bytes that a microbatch holds for its backward, without parameters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct ActivationBytes {
    /// After `F`.
    pub after_forward: usize,
    /// After `I`.
    pub after_input: usize,
    /// What the backward computes again before it starts, beyond what `F` left, if activations are recomputed.
    pub recomputed: usize,
}
