//! How a stage's backward is split: what is asked for, which engine runs the stage, and what it measured.

/// How stages split their backwards into `I` (gradients of the input) and `W` (gradients of the weights).
///
/// Whatever the choice, loss, gradients and weights are the same numbers, but for what the guide's chapter `numbers` lists as
/// not guarded yet; only time and memory differ. A *captured* stage is recorded as a list of operations, of which `I` then computes the input's gradients and nothing else.
/// `Pipeline::engines` reports which stages are captured, and why others are not.
///
/// Each forward of a microbatch runs the stage's code, and the loss's, once, on tensors that hold no values: that records the
/// forward and its backward, and computes nothing. If the recording equals one that is kept (operations, sizes, scalars to
/// the last bit, values brought from the host), the programs of that one are run; else programs are made of the new one and
/// kept. So a captured stage reads, counts and draws on the host what the plain loop would: annealed fields, flags, atomics,
/// counters, what a loss closure holds. Backwards and recomputed forwards run none of the user's code. The costs:
///
/// - A forward that is recorded and known: 1.1 ms for a transformer block of width 256 (202 operations), whose forward and backward
///   over 512 tokens take 239 ms on a processor (0.5 %, in a development build); 0.1 ms for a small stack of layers, which is as long as it computes.
/// - One that is new: 26 ms more for that block. A value that changes
///   with every step costs that each step, and is reported by `tracing` once; given to the batch as a tensor
///   ([`Stage::Extra`](crate::stage::Stage::Extra)) it costs nothing. `Builder::captured_programs` bounds how many are kept.
/// - A tensor that a module holds outside a `Param` is copied to the host for each forward; on a GPU that waits for the
///   device. A `Param` that is not trained costs nothing.
///
/// A stage cannot be captured if its forward
///
/// - reads values of tensors (`into_scalar`, control flow on them),
/// - changes buffers (batch norm's running statistics),
/// - uses a tensor that is not its input, extra, target or parameter (one that an earlier forward kept, say), or
/// - runs an operation that Burn's capture does not know.
///
/// Such a refusal is found by trying, and holds for the stage from then on. The trial has run some of the stage's code, and the
/// forward then runs all of it: a counter has counted once too often, unless the stage implements
/// [`Stage::skip_capture`](crate::stage::Stage::skip_capture) and is not tried.
///
/// Two things cannot be seen. A forward that asks for a value with `try_into_data` and goes on without it when that fails is
/// captured as it went on. And state that a forward changes in the module itself, not behind a pointer that its copies
/// share (an `Arc`), is changed in a copy and lost; forwards of recomputed stages run on a copy in any case.
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
#[derive(Clone)]
pub struct EngineReport {
    /// Are they run from programs that were captured once and are replayed? Else by Burn's autodiff.
    pub captured: bool,
    /// The reason for it.
    pub reason: String,
    /// What deferred operations left for `W`; `None` before the first `W`, in a plan that does not split, and for a
    /// captured stage.
    pub deferred: Option<DeferredShare>,
    /// The programs that a captured stage keeps, the last used first.
    pub programs: Vec<std::sync::Arc<crate::program::StagePrograms>>,
}

/// Without the programs' operations; a program's own `Debug` has them.
impl std::fmt::Debug for EngineReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { captured, reason, deferred, programs } = self;
        let mut all = f.debug_struct("EngineReport");
        all.field("captured", captured).field("reason", reason).field("deferred", deferred);
        all.field("programs", &programs.len()).finish()
    }
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
    /// The most at once while `F`, `I`, `W` and `B` run, each ([`Program::peak_bytes`](crate::program::Program::peak_bytes)); known where the
    /// stage is compiled and nothing of it is interpreted.
    pub peaks: Option<[usize; 4]>,
}
