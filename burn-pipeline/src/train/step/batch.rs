//! Forwards and backwards of one batch on one rank.

use super::contract::{Contract, evaluated_loss};
use super::rank::Rank;
use super::replicas;
use crate::execute::{ExecuteError, MicrobatchLoss, Purpose, RankOutcome, ReplicaShare, Run};
use crate::payload::Payload;
use crate::stage::{Accumulation, ActivationBytes, Microbatches};
use crate::train::non_finite::{NonFinite, OnNonFinite};
use burn_pipeline_plan::plan::{CheckedPlan, StageId};
use burn_pipeline_plan::trace::Event;
use std::collections::BTreeMap;
use std::time::Instant;

/// The outcome of one batch on one rank.
#[derive(Debug, Default)]
pub(crate) struct BatchOutcome {
    /// The batch's loss, the same on every rank.
    pub(crate) loss: f64,
    /// The first loss since the last step that is NaN or infinite, the same on every rank; none if the policy allows
    /// such losses.
    pub(crate) non_finite: Option<NonFinite>,
    /// The losses of all microbatches, the same on every rank.
    pub(crate) losses: Vec<MicrobatchLoss>,
    /// The numbers that the loss function reported, by microbatch, the same on every rank.
    pub(crate) observed: Vec<Vec<f64>>,
    /// Outputs of the last stage by microbatch, on its rank, for an evaluation or a step whose outputs are wanted.
    pub(crate) outputs: Vec<(usize, Payload)>,
    /// Gradients of the batch by stage and microbatch, if they are wanted; each payload is an [`OfBatch`].
    pub(crate) of_batch: Vec<((StageId, usize), Payload)>,
    /// The factor that turns these into gradients of `loss`.
    pub(crate) scale: f64,
    /// The timeline's events.
    pub(crate) events: Vec<Event>,
    /// Bytes that each stage of this rank sent on, for its largest microbatch.
    pub(crate) message_bytes: BTreeMap<StageId, usize>,
    /// Bytes of the largest value that each stage of this rank sent past the next one.
    pub(crate) skip_bytes: BTreeMap<StageId, usize>,
    /// The largest number of microbatches held at once.
    pub(crate) peak_held: usize,
    /// The most bytes held for backwards at once, if the stages' engines know.
    pub(crate) peak_held_bytes: Option<usize>,
    /// The activation bytes of each stage's largest microbatch, if its engine knows.
    pub(crate) activations: BTreeMap<StageId, ActivationBytes>,
}

impl BatchOutcome {
    fn new(loss: f64, outcome: RankOutcome) -> Self {
        let RankOutcome { losses, observed, outputs, of_batch, events, message_bytes, skip_bytes, .. } = outcome;
        let (peak_held, peak_held_bytes) = (outcome.peak_held, outcome.peak_held_bytes);
        let held = Self { peak_held, peak_held_bytes, ..Self::default() };
        Self { loss, losses, observed, outputs, of_batch, events, message_bytes, skip_bytes, ..held }
    }

    /// Copies outputs and gradients that another thread may read; see
    /// [`AnyTensor::unshared`](crate::payload::AnyTensor).
    pub(crate) fn for_another_thread(mut self) -> Self {
        self.outputs = self.outputs.into_iter().map(|(index, output)| (index, output.unshared())).collect();
        self.of_batch = self.of_batch.into_iter().map(|(of, gradients)| (of, gradients.unshared())).collect();
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
        let seeding = self.contract.seeding(batch);
        let first_replica = self.is_first_replica();
        let mut ordered = false;
        for (&stage, held) in self.executor.stages().iter_mut() {
            // In the batch's order, other replicas' gradients come after the first one's: see `replicas::chain`.
            held.gradients().begin((first_replica && stage.route() == 0).then_some(0));
            ordered |= held.gradients().accumulation() == Accumulation::Ordered;
        }
        if ordered {
            self.executor.gather_sums_on_first()?;
        }
        // Gradients of sharded parameters are reduced with every batch, others with the last one before a step.
        let in_row = share.same_plan && !ordered && self.executor.grid().replicas() > 1;
        let share = ReplicaShare { reduce: in_row && share.reduce, reduce_shards: in_row, ..share };
        let state = self.pinned_state(plan.plan())?;
        let outcome = self.executor.run(Run { plan, batch, seeding, purpose: Purpose::Step(step), began, share })?;
        self.refuse_changed(state)?;
        let loss = self.contract.gather(&outcome.losses);
        let scale = self.contract.scale_of(&outcome.losses);
        let non_finite = self.refused_number(self.contract.non_finite());
        if non_finite.is_some() && self.settings.on_non_finite == OnNonFinite::Error {
            // All ranks know all losses, so all of them stop here.
            self.forget();
            return Ok(BatchOutcome { non_finite, ..BatchOutcome::new(loss, outcome) });
        }
        replicas::chain(&mut self.executor, &self.placement)?;
        self.executor.reduce_remaining(true)?;
        self.observed.extend(outcome.observed.iter().cloned());
        let activations =
            self.executor.stages().iter().filter_map(|(&stage, held)| Some((stage, held.engine().activation()?)));
        let activations = activations.collect();
        Ok(BatchOutcome { activations, non_finite, scale, ..BatchOutcome::new(loss, outcome) })
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
        let seeding = Contract::new(self.settings.reduction).seeding(batch);
        let outcome = self.executor.run(Run { plan, batch, seeding, purpose: Purpose::Evaluation, began, share })?;
        Ok(BatchOutcome::new(evaluated_loss(self.settings.reduction, &outcome.losses), outcome))
    }
}
