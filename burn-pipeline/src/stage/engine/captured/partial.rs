//! Backwards without the gradients of outputs that nothing downstream used.
//!
//! Guarantees: a parameter or input that influences such outputs alone gets no gradient, rather than zeros that an
//! optimizer would step with. Microbatches whose forward has run already are finished.
//!
//! 1. The set of absent gradients is known when a backward starts, and may differ between microbatches. Its backward is cut
//!    from the microbatch's own recording (`Recording::without`), once for each set: nothing is computed for an output
//!    without a gradient, and the user's code does not run again.
//! 2. A stage's next forwards are recorded with these outputs last. So from then on gradients are added as if the outputs were
//!    not there: in autodiff's order. Those of forwards that ran before may be added in another order.
//! 3. Where a recording cannot be cut (an operation joins gradients of several outputs otherwise than by a sum), the whole
//!    backward runs with zeros, and results that depend on zeros alone are dropped.

use super::engine::Captured;
use super::microbatch_run::MicrobatchRun;
use std::sync::{Arc, PoisonError};

impl Captured {
    /// The microbatch, to go on with its backward without the gradients of the outputs at these places.
    pub(super) fn without(&mut self, run: MicrobatchRun, absent: Vec<usize>) -> MicrobatchRun {
        if absent.is_empty() {
            return run;
        }
        let whole = run.stage.clone();
        let mut known = whole.partial.lock().unwrap_or_else(PoisonError::into_inner);
        let cut = || Some(Arc::new(whole.with_programs(Arc::new(whole.programs.without(&whole.recording, &absent)?))));
        match known.entry(absent.clone()).or_insert_with(cut) {
            Some(part) => run.with_backward(part.clone()),
            None => run.with_zeros(&absent),
        }
    }
}
