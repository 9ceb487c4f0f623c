//! Restores a rank's executor after a failed call.
//!
//! Guarantees: after it, a rank is in its state before the call, except for sums of gradients and running
//! statistics, which [`Rank::recover`](crate::train) restores. All ranks do it together, when the link has dropped
//! the call's messages.
//!
//! 1. Engines drop held activations, captured runs that have begun, and states offered to their stage. If the
//!    members of a stage's group compare their programs, all record anew, since the call may have failed when only
//!    some had compared. The graphs of forwards without a backward are dropped too (`stage/state/abandoned.rs`).
//! 2. Early and posted messages of replicas and started reductions are dropped; gathered parameters become pieces
//!    again.
//! 3. The one-time comparisons of members run again in the next row.

use super::executor::Executor;

impl Executor {
    /// Drops the state of a failed call. All ranks call it.
    pub(crate) fn restart(&mut self) {
        self.stages.values_mut().for_each(|held| held.restart());
        self.group.restart(&mut self.stages);
        self.compared = [false; 2];
    }
}
