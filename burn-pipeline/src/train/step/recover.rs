//! Recovers after a failed call, on all ranks together.
//!
//! Guarantees: all ranks get the same result, or an error that closes the pipeline. If no rank had begun to change
//! weights, the model is restored, to the last bit, to its state before the call, including running statistics.
//!
//! 1. The link forgets the failure, and drops everything that was sent before
//!    ([`Link::recover`](crate::link::Link::recover)).
//! 2. Ranks compare how many calls each has ended. If only some had ended the call, they differ by a whole call, and
//!    the pipeline is closed.
//! 3. Each drops what is left of the call ([`Executor::restart`](crate::execute)).
//! 4. If the call of any rank accumulates gradients, or had begun to change weights, all drop what was accumulated
//!    since the last step: sums of gradients, losses, observed numbers. The parts of the failed batch cannot be
//!    separated from those of earlier batches.
//! 5. Running statistics are restored to before the first of these batches, unless weights have changed.

use super::rank::Rank;
use crate::execute::ExecuteError;
use crate::link::{Activity, LinkError};
use burn_pipeline_plan::plan::StageId;
use std::collections::HashMap;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Recovered {
    /// What was accumulated since the last step is gone.
    pub(crate) dropped: bool,
    /// Some rank had begun to change its weights.
    pub(crate) changed: bool,
}

impl Rank {
    pub(crate) fn begin_call(&mut self) {
        self.changes_weights = false;
        // Not earlier: until all ranks have ended a call, it may be undone.
        if std::mem::take(&mut self.statistics_end) {
            self.statistics = None;
        }
    }

    /// After a call that changed weights: waits until all ranks have changed theirs. So a failure meanwhile, in an
    /// optimizer for example, is this call's failure on all ranks. All ranks call it.
    ///
    /// # Errors
    /// Returns [`ExecuteError`] if another rank failed.
    pub(crate) fn meet_after_changes(&mut self) -> Result<(), ExecuteError> {
        if !self.changes_weights {
            return Ok(());
        }
        self.executor.link().set_activity(Activity::Gathering);
        self.executor.gather(&()).map(drop)
    }

    /// Restores the rank after a call that failed here or elsewhere. `gathers` is true if this rank's call accumulates
    /// gradients. All ranks call it.
    ///
    /// # Errors
    /// Returns [`ExecuteError`] if the link cannot continue, a rank does not take part, or ranks have ended different
    /// calls.
    pub(crate) fn recover(&mut self, gathers: bool) -> Result<Recovered, ExecuteError> {
        let deadline = self.executor.deadline();
        let link = self.executor.link();
        link.set_activity(Activity::Gathering);
        link.recover(deadline).map_err(|source| self.link_error(source))?;
        let own = (self.calls, gathers, self.changes_weights, self.trains, self.sharing.replaced);
        let table: Vec<(u64, bool, bool, bool, bool)> = self.executor.gather(&own)?;
        if let Some(other) = table.iter().position(|(calls, ..)| *calls != self.calls) {
            let message = format!("rank {other} has ended another call than this rank");
            return Err(self.link_error(LinkError::Closed { rank: self.number(), message }));
        }
        self.executor.restart();
        (self.members_compared, self.copies_compared) = (false, false);
        self.sharing.compared = false;
        // If any rank has not found gradients, all check again.
        self.trains = table.iter().all(|&(_, _, _, trains, _)| trains);
        self.sharing.replaced |= table.iter().any(|&(.., replaced)| replaced);
        let changed = table.iter().any(|&(_, _, changed, ..)| changed);
        let dropped = changed || table.iter().any(|&(_, gathers, ..)| gathers);
        if dropped && !changed {
            self.put_statistics_back()?;
        }
        if dropped {
            self.forget();
        }
        self.changes_weights = false;
        self.executor.link().set_activity(Activity::Idle);
        Ok(Recovered { dropped, changed })
    }

    /// Saves the running statistics before the first batch since the last step.
    pub(super) fn keep_statistics(&mut self) {
        if self.statistics.is_some() {
            return;
        }
        let state = |(&stage, held): (&StageId, &mut Box<dyn crate::stage::ErasedStage>)| {
            let state: HashMap<_, _> =
                held.forward_state().into_iter().map(|weight| (weight.id, weight.value)).collect();
            (!state.is_empty()).then_some((stage, state))
        };
        self.statistics = Some(self.executor.stages().iter_mut().filter_map(state).collect());
    }

    fn put_statistics_back(&mut self) -> Result<(), ExecuteError> {
        let rank = self.number();
        for (stage, values) in self.statistics.take().unwrap_or_default() {
            let Some(held) = self.executor.stages().get_mut(&stage) else { continue };
            held.replace(&values).map_err(|error| ExecuteError::Device { rank, message: error.to_string() })?;
        }
        Ok(())
    }
}
