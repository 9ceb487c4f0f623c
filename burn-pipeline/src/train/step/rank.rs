//! One rank of a training job: its stages, and what happens to their weights.
//!
//! Guarantees: all ranks that call the same functions in the same order see the same losses, the same gradient
//! norm and the same scaling, whatever the transport; a function that fails has told every other rank.
//!
//! 1. [`Rank::accumulate`] runs one batch through the plan: gradients gather in the stages.
//! 2. [`Rank::apply`] adds up the replicas of a stage (data-parallel ones, and those of bidirectional placements) and
//!    the copies of shared parameters, scales by the loss contract, clips by the norm over all ranks, and steps the weights;
//!    then each stage gets what was observed of all microbatches ([`StageId::after_step`](crate::stage::StageId::after_step)).

use crate::execute::{ExecuteError, Executor, RankOutcome, ReplicaShare, Run, SpecCheck};
use crate::link::{Activity, gather};
use crate::plan::{CheckedPlan, Placement, StageId};
use crate::stage::{
    Accumulation, ActivationBytes, ErasedStage, ForwardSeed, Microbatches, Payload, Reduction, StageMetadata, Validate,
    mixed,
};
use crate::trace::Event;
use crate::train::control::worker::caught;
use crate::train::shared::{SharedParameter, SharedReport, Sharing};
use crate::train::step::contract::{Contract, evaluated_loss};
use crate::train::step::outputs::deliver;
use crate::train::step::replicas;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// One rank of a training job.
#[derive(Debug)]
pub struct Rank {
    executor: Executor,
    placement: Placement,
    contract: Contract,
    reduction: Reduction,
    sharing: Sharing,
    validate: Validate,
    /// What was observed of each microbatch since the weights were last stepped.
    observed: Vec<Vec<f64>>,
}

/// What one batch gave on one rank.
#[derive(Debug, Default)]
pub struct BatchOutcome {
    /// The batch's loss, the same on every rank.
    pub loss: f64,
    /// Numbers that the loss function wants observed, by microbatch, the same on every rank.
    pub observed: Vec<Vec<f64>>,
    /// Outputs of the last stage by microbatch, where an evaluation ended on this rank.
    pub outputs: Vec<(usize, Payload)>,
    /// What was done when.
    pub events: Vec<Event>,
    /// Bytes that each stage of this rank handed on, for its largest microbatch.
    pub message_bytes: BTreeMap<StageId, usize>,
    /// Bytes of the largest value that each stage of this rank handed past the next one.
    pub skip_bytes: BTreeMap<StageId, usize>,
    /// The largest number of microbatches held at once.
    pub peak_held: usize,
    /// The most bytes held for backwards at once, where the stages' engines can tell.
    pub peak_held_bytes: Option<usize>,
    /// What each stage's largest microbatch leaves behind, where its engine can tell.
    pub activations: BTreeMap<StageId, ActivationBytes>,
}

/// What stepping the weights gave.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ApplyOutcome {
    /// The loss over all batches since the last step.
    pub loss: f64,
    /// The norm of all gradients over all ranks before clipping, where clipping was asked for.
    pub gradient_norm: Option<f64>,
}

impl Rank {
    /// A rank around an executor. In bidirectional placements, replica 1 starts from replica 0's weights; of data-parallel
    /// replicas, all start from the first one's.
    ///
    /// # Errors
    /// If the other replica's rank failed.
    pub fn new(executor: Executor, placement: Placement, reduction: Reduction) -> Result<Self, ExecuteError> {
        let (contract, sharing) = (Contract::new(reduction), Sharing::default());
        let validate = Validate::Off;
        let mut rank = Self { executor, placement, contract, reduction, sharing, validate, observed: Vec::new() };
        let copied = replicas::copy_weights(&mut rank.executor, &rank.placement);
        rank.told(copied)?;
        let started = rank.executor.broadcast_weights();
        rank.told(started)?;
        Ok(rank)
    }

    /// Finds the shared parameters, gives all their copies the first one's value, and sums their gradients from now
    /// on. All ranks call it once, with the same declarations, before the first batch; also without any, since that
    /// refuses what is shared and not declared.
    ///
    /// # Errors
    /// [`ExecuteError::Shared`] where copies would drift apart, the same on every rank; or if another rank failed.
    pub fn share(&mut self, declared: &[SharedParameter]) -> Result<&[SharedReport], ExecuteError> {
        let agreed = Sharing::agree(&mut self.executor, &self.placement, declared);
        self.sharing = self.told(agreed)?;
        let copied = self.sharing.copy_first(&mut self.executor);
        self.told(copied)?;
        Ok(self.sharing.reports())
    }

    /// What is shared among stages.
    pub(crate) fn sharing(&self) -> &Sharing {
        &self.sharing
    }

    /// Shards the parameters of stages over the data-parallel replicas from now on: of those that say so themselves, and
    /// where `all` is said, of those that say nothing. Shared parameters are agreed on before ([`Rank::share`]).
    ///
    /// # Errors
    /// [`ExecuteError::NotByElement`] where a stage's optimizer cannot step pieces of parameters; [`ExecuteError::Shared`]
    /// where of two stages that share a parameter one is sharded and the other is not.
    pub fn shard(&mut self, all: bool) -> Result<(), ExecuteError> {
        let sharded = self.executor.shard(all);
        self.told(sharded)?;
        let alike = self.sharing.refuse_half_sharded(&mut self.executor);
        self.told(alike)
    }

    /// Has the forwards of the next batch draw random numbers from this seed, the stage and the microbatch alone;
    /// `None` leaves the generator as it is. All ranks are given the same.
    pub fn draw_from(&mut self, seed: Option<u64>) {
        for (stage, held) in self.executor.stages().iter_mut() {
            held.set_forward_seed(ForwardSeed::new(seed.map(|seed| mixed(seed, stage.index() as u64))));
        }
    }

    /// Runs forwards and backwards of one batch; gradients are added to those already gathered.
    ///
    /// # Errors
    /// [`ExecuteError`] where this rank or another one fails.
    pub fn accumulate(
        &mut self,
        plan: &CheckedPlan,
        batch: &Microbatches,
        began: Instant,
    ) -> Result<BatchOutcome, ExecuteError> {
        self.accumulate_part(plan, batch, began, ReplicaShare::default())
    }

    /// As [`Rank::accumulate`], of the part of the batch that is this data-parallel replica's. All ranks call it with
    /// the whole batch, each with its replica's plan and part. Gradients that are reduced now (`part.reduce`) must be
    /// applied before the next batch.
    ///
    /// # Errors
    /// [`ExecuteError`] where this rank or another one fails.
    pub fn accumulate_part(
        &mut self,
        plan: &CheckedPlan,
        batch: &Microbatches,
        began: Instant,
        part: ReplicaShare,
    ) -> Result<BatchOutcome, ExecuteError> {
        let seeding = self.contract.seeding(batch);
        let first_replica = self.executor.grid().replica() == 0;
        let mut ordered = false;
        for (&stage, held) in self.executor.stages().iter_mut() {
            // Other replicas' gradients come after the first one's in the batch's order: see `replicas::chain`.
            held.begin((first_replica && stage.replica() == 0).then_some(0));
            ordered |= held.gradients().accumulation() == Accumulation::Ordered;
        }
        if ordered {
            let taken = self.executor.gather_sums_on_first();
            self.told(taken)?;
        }
        // Sharded gradients are reduced with every batch, others with the last one.
        let in_row = part.same_plan && !ordered;
        let part = ReplicaShare { reduce: in_row && part.reduce, reduce_shards: in_row, ..part };
        let outcome = self.executor.run(Run { plan, batch, seeding, train: true, began, share: part })?;
        let chained = replicas::chain(&mut self.executor, &self.placement);
        self.told(chained)?;
        let reduced = self.executor.reduce_remaining(true);
        self.told(reduced)?;
        let loss = self.contract.gather(&outcome.losses);
        self.observed.extend(outcome.observed.iter().cloned());
        let activations = self.executor.stages().iter().filter_map(|(&stage, held)| Some((stage, held.activation()?)));
        Ok(BatchOutcome { activations: activations.collect(), ..BatchOutcome::new(loss, outcome) })
    }

    /// Steps the weights with what was gathered, and forgets it.
    ///
    /// # Errors
    /// If another rank failed, or a device reports an error.
    pub fn apply(&mut self, learning_rate: f64, clip_norm: Option<f64>) -> Result<ApplyOutcome, ExecuteError> {
        let gradient_norm = self.finish_gradients(clip_norm)?;
        self.executor.link().announce(Activity::Optimizing);
        let (rank, observed) = (self.executor.rank(), std::mem::take(&mut self.observed));
        let stepped = self.executor.stages().iter_mut().try_for_each(|(stage, held)| {
            let doing = || format!("stepping the weights of stage {stage}");
            caught(rank, doing, || {
                held.optimize(learning_rate);
                Ok(())
            })?;
            let doing = || format!("changing stage {stage} after its step");
            caught(rank, doing, || {
                held.after_step(&observed);
                Ok(())
            })
        });
        self.told(stepped)?;
        let watched = self.sharing.watch(&mut self.executor);
        self.told(watched)?;
        self.executor.link().announce(Activity::Idle);
        if self.validate == Validate::FirstStep {
            *self.executor.spec_check_mut() = SpecCheck::Off;
        }
        let loss = self.contract.loss();
        self.contract = Contract::new(self.reduction);
        Ok(ApplyOutcome { loss, gradient_norm })
    }

    /// Replicas summed, contract applied, norm clipped: the gradients as the optimizer gets them.
    ///
    /// # Errors
    /// As [`Rank::apply`].
    pub fn finish_gradients(&mut self, clip_norm: Option<f64>) -> Result<Option<f64>, ExecuteError> {
        self.executor.set_shard_gradients();
        let reduced = self.executor.reduce_remaining(false);
        self.told(reduced)?;
        let summed = replicas::sum_gradients(&mut self.executor, &self.placement);
        self.told(summed)?;
        let shared = self.sharing.sum_gradients(&mut self.executor);
        self.told(shared)?;
        let scale = self.contract.scale();
        for stage in self.executor.stages().values_mut() {
            stage.gradients().scale(scale);
        }
        let Some(limit) = clip_norm else { return Ok(None) };
        let norm = self.gradient_norm();
        let norm = self.told(norm)?;
        if norm > limit {
            let factor = limit / (norm + 1e-6);
            self.executor.stages().values_mut().for_each(|stage| stage.gradients().scale(factor));
        }
        Ok(Some(norm))
    }

    /// The norm over all ranks. Squares are added in the model's order, so that any cut gives the same number.
    fn gradient_norm(&mut self) -> Result<f64, ExecuteError> {
        let rank = self.executor.rank();
        let mut rows = Vec::new();
        // The gradients of data-parallel replicas are equal, so that one of them counts; or each has its pieces.
        let first = self.executor.grid().replica() == 0;
        let stages: Vec<StageId> =
            self.executor.stages().keys().copied().filter(|stage| stage.replica() == 0).collect();
        let counts = |executor: &Executor, stage| first || executor.shards(stage);
        let counted: Vec<StageId> = stages.into_iter().filter(|&stage| counts(&self.executor, stage)).collect();
        for stage in counted {
            let Some(held) = self.executor.stages().get_mut(&stage) else { continue };
            let squares = squares(stage, held.as_mut(), &self.sharing)
                .map_err(|message| ExecuteError::Device { rank, message })?;
            rows.push((stage.index(), squares));
        }
        let deadline = self.executor.deadline();
        let link = self.executor.link();
        link.announce(Activity::Gathering);
        let table: Result<Vec<Vec<(usize, Vec<f64>)>>, _> = gather(link, &rows, deadline);
        let table = table.map_err(|source| ExecuteError::Link { rank, task: None, source })?;
        let mut by_stage: Vec<_> = table.into_iter().flatten().collect();
        by_stage.sort_by_key(|(stage, _)| *stage);
        Ok(by_stage.iter().flat_map(|(_, squares)| squares.iter()).sum::<f64>().sqrt())
    }

    /// Runs forwards alone, without autodiff.
    ///
    /// # Errors
    /// [`ExecuteError`] where this rank or another one fails.
    pub fn evaluate(
        &mut self,
        plan: &CheckedPlan,
        batch: &Microbatches,
        began: Instant,
    ) -> Result<BatchOutcome, ExecuteError> {
        self.evaluate_part(plan, batch, began, ReplicaShare::default())
    }

    /// As [`Rank::evaluate`], of the part of the batch that is this data-parallel replica's; the loss is the whole
    /// batch's.
    ///
    /// # Errors
    /// [`ExecuteError`] where this rank or another one fails.
    pub fn evaluate_part(
        &mut self,
        plan: &CheckedPlan,
        batch: &Microbatches,
        began: Instant,
        part: ReplicaShare,
    ) -> Result<BatchOutcome, ExecuteError> {
        let seeding = Contract::new(self.reduction).seeding(batch);
        let outcome = self.executor.run(Run { plan, batch, seeding, train: false, began, share: part })?;
        let loss = evaluated_loss(self.reduction, &outcome.losses);
        Ok(BatchOutcome::new(loss, outcome))
    }

    /// As [`Rank::evaluate_part`], and gives the outputs of all microbatches to the ranks that ask for them, wherever the
    /// last stage is. All ranks name the same; the loss is on every rank in any case.
    ///
    /// # Errors
    /// As [`Rank::evaluate`]; if there is no such rank.
    pub fn evaluate_for(
        &mut self,
        plan: &CheckedPlan,
        batch: &Microbatches,
        began: Instant,
        part: ReplicaShare,
        asking: &BTreeSet<usize>,
    ) -> Result<BatchOutcome, ExecuteError> {
        let mut outcome = self.evaluate_part(plan, batch, began, part)?;
        let last = StageId::new(self.placement.stages() - 1);
        let outputs = deliver(&mut self.executor, last, outcome.outputs, asking);
        outcome.outputs = self.told(outputs)?;
        Ok(outcome)
    }

    /// The rank's executor, and through it its stages.
    pub fn executor(&mut self) -> &mut Executor {
        &mut self.executor
    }

    /// Where stages live.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// Forgets gradients and losses gathered since the last step.
    pub fn forget(&mut self) {
        self.executor.stages().values_mut().for_each(|stage| stage.clear());
        self.executor.cancel_exchanges();
        self.observed.clear();
        self.contract = Contract::new(self.reduction);
    }

    /// Compares forms with these from now on, as far as asked for.
    pub(crate) fn watch_forms(&mut self, validate: Validate, known: BTreeMap<StageId, StageMetadata>) {
        self.validate = validate;
        *self.executor.spec_check_mut() = match validate {
            Validate::Off => SpecCheck::Off,
            Validate::FirstStep | Validate::EveryMicrobatch => SpecCheck::Compare(known),
        };
    }

    /// What the loss is over a microbatch.
    pub(crate) fn reduction(&self) -> Reduction {
        self.reduction
    }

    pub(crate) fn told<T>(&mut self, result: Result<T, ExecuteError>) -> Result<T, ExecuteError> {
        result.inspect_err(|error| self.executor.fail(error))
    }
}

impl BatchOutcome {
    fn new(loss: f64, outcome: RankOutcome) -> Self {
        let RankOutcome { observed, outputs, events, message_bytes, skip_bytes, peak_held, peak_held_bytes, .. } =
            outcome;
        let activations = BTreeMap::new();
        Self { loss, observed, outputs, events, message_bytes, skip_bytes, peak_held, peak_held_bytes, activations }
    }
}

/// The squared norm of each parameter's gradient, in visiting order; a shared parameter counts on its first stage.
fn squares(stage: StageId, held: &mut dyn ErasedStage, sharing: &Sharing) -> Result<Vec<f64>, String> {
    let parameters = held.parameters().into_iter().filter(|&id| !sharing.repeats(stage, id));
    let store = held.gradients();
    parameters.filter_map(|id| store.get(id)).map(|gradient| gradient.squared_norm()).collect()
}
