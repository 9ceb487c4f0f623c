//! How a stage's backward is split: the choice, the engine that runs the stage, and what it measured.

use serde::{Deserialize, Serialize};

/// How stages split their backwards into `I` (gradients of the input) and `W` (gradients of the weights).
///
/// Loss, gradients and weights are the same numbers for every choice, except for what the guide's chapter `numbers`
/// lists as not guarded yet; only time and memory differ. A *captured* stage is recorded as a list of operations, so
/// that `I` computes the input's gradients and nothing else. `Pipeline::engines` reports which stages are captured,
/// and why others are not.
///
/// Each forward of a microbatch (unless several share a recording, see below) runs the stage's code and the loss
/// function once, on tensors without values: this records the forward and its backward, and computes nothing. If an
/// equal recording is kept (the same operations, sizes, bits of scalars and values brought from the host), its programs
/// run; otherwise new programs are made and kept. So captured stages read, count and draw on the host what the plain
/// loop would: annealed fields, flags, atomics, counters, the state of a loss closure. Backwards and recomputations
/// run none of the user's code. The costs:
///
/// - Recording takes as long as a small stack of layers computes, and 0.5 % of a transformer block's time
///   (`docs/decisions/011-record-every-forward.md`). New programs take longer. A value that changes with every step
///   needs them in each step, and `tracing` reports it once; given to the batch as a tensor
///   ([`Stage::Extra`](crate::stage::Stage::Extra)) it costs nothing. `Tuning::captured_programs` bounds how many
///   programs are kept.
/// - If stages read nothing that changes, most forwards need no recording
///   ([`Tuning::record_every`](crate::execute::Tuning::record_every)).
/// - A tensor that a module holds outside a `Param` is copied to the host for each forward; on a GPU that waits for
///   the device. A frozen `Param` costs nothing.
///
/// A stage cannot be captured if its forward
///
/// - reads values of tensors (`into_scalar`, control flow on them),
/// - changes buffers (batch norm's running statistics),
/// - uses a tensor that is not its input, extra, target or parameter (such as one kept from an earlier forward), or
/// - runs an operation that Burn's capture does not know.
///
/// A refusal is found by trying, and holds for the stage from then on. The trial has run some of the stage's code,
/// and the eager forward then runs all of it. So a counter counts once too often, and a cache outside of the module
/// that the forward fills (an `Arc<OnceLock<Tensor>>`) is left with a tensor without values, which later forwards
/// cannot use: fill it when the stage is made, or implement
/// [`Stage::skip_capture`](crate::stage::Stage::skip_capture), so that the stage is not tried.
///
/// Two things are not detected. A forward that reads a value with `try_into_data`, and goes on without it when that
/// fails, is captured the way it went on. And state that a forward changes in the module itself, not behind a pointer
/// that its copies share (an `Arc`), is changed in a copy and lost; forwards of recomputed stages run on a copy in
/// any case.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SplitBackward {
    /// Captured if the stage can be, and the plan runs `I` and `W` on it, or the pipeline has a seed or compiles
    /// stages; otherwise like `Eager`.
    #[default]
    Auto,
    /// Burn's autodiff: `I` computes both kinds of gradients and `W` only adds those of the weights, except for
    /// layers that defer theirs (see [`DeferredForward`](crate::ops::DeferredForward)).
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
    /// The deferred share of all elements, between 0 and 1; 0 if there are no parameters.
    pub fn share(&self) -> f64 {
        self.elements as f64 / self.of.max(1) as f64
    }
}

/// How a stage's forwards and backwards are run, and why.
#[derive(Clone)]
pub struct EngineReport {
    /// True if captured programs are replayed; false if Burn's autodiff runs.
    pub captured: bool,
    /// Why, in words. Whether a captured stage is compiled, its programs say
    /// ([`StagePrograms::is_compiled`](crate::program::StagePrograms::is_compiled)).
    pub reason: String,
    /// What deferred operations left for `W`; `None` before the first `W`, in a plan that does not split, and for a
    /// captured stage.
    pub deferred: Option<DeferredShare>,
    /// The programs that a captured stage keeps, the last used first.
    pub programs: Vec<std::sync::Arc<crate::program::StagePrograms>>,
}

/// Leaves out the programs' operations; a program's own `Debug` has them.
impl std::fmt::Debug for EngineReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { captured, reason, deferred, programs } = self;
        let mut all = f.debug_struct("EngineReport");
        all.field("captured", captured).field("reason", reason).field("deferred", deferred);
        all.field("programs", &programs.len()).finish()
    }
}

/// Bytes that a microbatch holds for its backward, without parameters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
pub struct ActivationBytes {
    /// After `F`.
    pub after_forward: usize,
    /// After `I`.
    pub after_input: usize,
    /// What is computed again before the backward, beyond what `F` left, if activations are recomputed.
    pub recomputed: usize,
    /// The peak while each of `F`, `I`, `W` and `B` runs
    /// ([`Program::peak_bytes`](crate::program::Program::peak_bytes)); known if the stage is compiled and none of it
    /// is interpreted.
    pub peaks: Option<[usize; 4]>,
}
