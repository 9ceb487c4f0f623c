//! Forwards and backwards of one batch on one rank.

use super::contract::Contract;
use super::rank::Rank;
use super::replicas;
use crate::data_parallel::ReplicaGroup;
use crate::execute::{ExecuteError, Measured, Purpose, RankOutcome, ReplicaShare, Run};
use crate::stage::{Accumulation, Microbatches};
use crate::train::non_finite::{NonFinite, OnNonFinite};
use burn_pipeline_plan::plan::CheckedPlan;
use std::time::Instant;

/// The outcome of one batch on one rank.
#[derive(Debug, Default)]
pub(crate) struct BatchOutcome {
    /// What the rank's run returned. Outputs are those of an evaluation, or of a step whose outputs are wanted.
    pub(crate) run: RankOutcome,
    /// What the rank measured; once processes have exchanged it, what each rank did, in rank order.
    pub(crate) measured: Vec<Measured>,
    /// The batch's loss, the same on every rank.
    pub(crate) loss: f64,
    /// The first loss since the last step that is NaN or infinite, the same on every rank; none if the policy allows
    /// such losses.
    pub(crate) non_finite: Option<NonFinite>,
    /// The factor that turns gradients of the batch into gradients of `loss`.
    pub(crate) scale: f64,
}

impl BatchOutcome {
    /// Copies outputs and gradients that another thread may read; see
    /// [`AnyTensor::unshared`](crate::payload::AnyTensor).
    pub(crate) fn for_another_thread(mut self) -> Self {
        self.run.outputs = self.run.outputs.into_iter().map(|(index, output)| (index, output.unshared())).collect();
        self.run.of_batch = self.run.of_batch.into_iter().map(|(of, gradients)| (of, gradients.unshared())).collect();
        self
    }
}

impl Rank {
    /// Runs forwards and backwards of this data-parallel replica's part of a batch, and adds the gradients to those
    /// accumulated. All ranks call it with the whole batch, each with its replica's plan and share; `step` counts from
    /// 1. Gradients that are reduced now (`share.reduce`) must be applied before the next batch.
    ///
    /// # Errors
    /// Returns [`ExecuteError`] if this rank or another one fails.
    pub(crate) fn accumulate(
        &mut self,
        plan: &CheckedPlan,
        batch: &Microbatches,
        began: Instant,
        step: u64,
        share: ReplicaShare,
    ) -> Result<BatchOutcome, ExecuteError> {
        self.step = step;
        self.keep_statistics();
        self.executor.update_trained()?;
        self.refuse_unfrozen(plan.plan().first_trained())?;
        self.sharing.refuse_replaced(&mut self.executor)?;
        let seeding = self.contract.seeding(batch);
        let first_replica = self.is_first_replica();
        let mut ordered = false;
        for (&stage, held) in self.executor.stages().iter_mut() {
            // In the batch's order, other replicas' gradients come after the first one's: see `replicas::chain`.
            held.gradients().begin((first_replica && stage.route() == 0).then_some(0));
            ordered |= held.gradients().accumulation == Accumulation::Ordered;
        }
        if ordered {
            self.executor.exchanging(None, ReplicaGroup::gather_sums_on_first)?;
        }
        // Gradients of sharded parameters are reduced with every batch, others with the last one before a step.
        let in_row = share.same_plan && !ordered && self.executor.grid().replicas() > 1;
        let share = ReplicaShare { reduce: in_row && share.reduce, reduce_shards: in_row, ..share };
        let state = self.pinned_state(plan.plan())?;
        let mut run = self.executor.run(Run { plan, batch, seeding, purpose: Purpose::Step(step), began, share })?;
        let mut measured = std::mem::take(&mut run.measured);
        self.refuse_changed(state)?;
        let (loss, scale) = self.contract.gather(&run.losses);
        let non_finite = self.refused_number(self.contract.non_finite());
        if non_finite.is_some() && self.settings.on_non_finite == OnNonFinite::Error {
            // All ranks know all losses, so all of them stop here.
            self.forget();
            return Ok(BatchOutcome { run, measured: vec![measured], loss, non_finite, scale });
        }
        replicas::chain(&mut self.executor, &self.placement)?;
        self.executor.exchanging(None, |group, stages| group.reduce_remaining(stages, true))?;
        self.observed.extend(run.observed.iter().cloned());
        let stages = self.executor.stages().iter();
        measured.activations = stages.filter_map(|(&stage, held)| Some((stage, held.engine().activation()?))).collect();
        Ok(BatchOutcome { run, measured: vec![measured], loss, non_finite, scale })
    }

    /// Refuses a stage that trains although the plan has no backward for it.
    fn refuse_unfrozen(&mut self, first: usize) -> Result<(), ExecuteError> {
        let rank = self.number();
        match self.executor.stages().iter().find(|(stage, held)| stage.index() < first && held.trains()) {
            Some((&stage, _)) => Err(ExecuteError::Unfrozen { rank, stage, first }),
            None => Ok(()),
        }
    }

    /// The number, unless the policy allows it.
    pub(super) fn refused_number(&self, found: Option<NonFinite>) -> Option<NonFinite> {
        found.filter(|_| self.settings.on_non_finite != OnNonFinite::Pass)
    }

    /// Runs only the forwards, without autodiff, of this replica's part of a batch. The loss is the whole batch's.
    ///
    /// # Errors
    /// Returns [`ExecuteError`] if this rank or another one fails.
    pub(crate) fn evaluate(
        &mut self,
        plan: &CheckedPlan,
        batch: &Microbatches,
        began: Instant,
        share: ReplicaShare,
    ) -> Result<BatchOutcome, ExecuteError> {
        let mut contract = Contract::new(self.settings.reduction);
        let seeding = contract.seeding(batch);
        let run = self.executor.run(Run { plan, batch, seeding, purpose: Purpose::Evaluation, began, share })?;
        let (loss, _) = contract.gather(&run.losses);
        Ok(BatchOutcome { run, loss, ..BatchOutcome::default() })
    }
}
