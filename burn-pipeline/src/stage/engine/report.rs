//! How a stage's backward is split: what is asked for, which engine runs the stage, and what it measured.

/// Which way stages run their backwards.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SplitBackward {
    /// Captured where the plan runs `I` and `W` and the stage can be captured, else plainly.
    #[default]
    Auto,
    /// By Burn's autodiff: `I` computes both gradients and `W` only adds the weights', but for the layers that
    /// defer theirs (see [`DeferredForward`](crate::ops::DeferredForward)).
    Eager,
    /// From captured programs, whatever the plan; a stage that cannot be captured fails and says why.
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

/// The way a stage's forwards and backwards are run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EngineKind {
    /// By Burn's autodiff.
    Eager,
    /// From programs that were captured once and are replayed.
    Captured,
}

impl std::fmt::Display for EngineKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            EngineKind::Eager => "eager",
            EngineKind::Captured => "captured",
        })
    }
}

/// The way a stage is run, and the reason for it.
#[derive(Clone, Debug)]
pub struct EngineReport {
    /// The engine.
    pub engine: EngineKind,
    /// Why this one.
    pub reason: String,
    /// What deferred operations left for `W`; `None` before the first `W`, and where no operation can defer (in a
    /// plan that does not split, and from captured programs, whose report is their own).
    pub deferred: Option<DeferredShare>,
    /// The programs that the stage was captured as, one for each form of its inputs.
    pub programs: Vec<std::sync::Arc<crate::program::StagePrograms>>,
}

impl EngineReport {
    /// A stage run by Burn's autodiff.
    pub fn eager(reason: impl Into<String>) -> Self {
        Self { engine: EngineKind::Eager, reason: reason.into(), deferred: None, programs: Vec::new() }
    }
}

/// Bytes that a microbatch leaves behind for its backward, parameters not counted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct ActivationBytes {
    /// After `F`.
    pub after_forward: usize,
    /// After `I`.
    pub after_input: usize,
    /// What the backward makes anew before it runs, beyond what `F` left, where activations are recomputed.
    pub recomputed: usize,
}
