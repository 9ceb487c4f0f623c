//! Bringing a rank's executor back after a call failed: what the call left is dropped, gathered gradients stay.
//!
//! Guarantees: after it, a rank is where it would be without the call, up to sums of gradients and running statistics, which
//! [`Rank::recover`](crate::train) brings back; all ranks do it together, when the link has dropped the call's messages.
//!
//! 1. Engines drop held activations, captured runs that have begun, and what was offered to their stage. Where the holders of a stage compare
//!    their programs, all record anew: the call may have ended when some had compared, and others had not. The graphs of forwards
//!    without a backward go, too (`stage/state/abandoned.rs`).
//! 2. Messages of replicas that came early, posted ones and started reductions are dropped; gathered parameters become pieces again.
//! 3. Nobody waits for the end of a row that did not end.
//! 4. What members compare once is compared again in the next row.

use super::executor::Executor;

impl Executor {
    /// Drops what a failed call left. All ranks call it.
    pub(crate) fn restart(&mut self) {
        self.stages.values_mut().for_each(|held| held.restart());
        self.group.restart(&mut self.stages);
        self.groups.forget_ends();
        self.compared = [false; 2];
    }
}
