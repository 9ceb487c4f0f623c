//! Backwards without the gradients of outputs that nothing downstream used.
//!
//! Guarantees: a parameter or input that influences only such outputs gets no gradient, rather than zeros that an
//! optimizer would step with. Microbatches whose forward has already run still finish.
//!
//! 1. Which gradients are absent is known when a backward starts, and may differ between microbatches. The backward
//!    is cut from the microbatch's own recording (`Recording::without`), once for each set of absent gradients:
//!    nothing is computed for an output without a gradient, and the user's code does not run again.
//! 2. A stage's next forwards are recorded with these outputs last, so that gradients are added as if these outputs
//!    did not exist: in autodiff's order. Gradients of forwards that ran before may be added in another order.
//! 3. If a recording cannot be cut (an operation joins gradients of several outputs other than by a sum), the whole
//!    backward runs with zeros, and results that depend only on zeros are dropped.

use super::engine::Captured;
use super::microbatch_run::MicrobatchRun;
use std::sync::Arc;

impl Captured {
    /// The microbatch, continued with a backward without the gradients of the outputs at these indices.
    pub(super) fn without(&mut self, run: MicrobatchRun, absent: Vec<usize>) -> MicrobatchRun {
        if absent.is_empty() {
            return run;
        }
        let whole = run.stage.clone();
        let mut known = whole.partial.lock();
        let cut = || Some(Arc::new(whole.with_programs(Arc::new(whole.programs.without(&whole.recording, &absent)?))));
        match known.entry(absent.clone()).or_insert_with(cut) {
            Some(part) => run.with_backward(part.clone()),
            None => run.with_zeros(&absent),
        }
    }
}
