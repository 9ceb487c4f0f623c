//! One step of the weights on one rank.

use super::contract::Contract;
use super::gradients::Finished;
use super::panic::caught;
use super::rank::Rank;
use super::replicas::copy_weights;
use crate::data_parallel::ReplicaGroup;
use crate::execute::{ExecuteError, SpecCheck};
use crate::link::Activity;
use crate::payload::{AnyTensor, Validate};
use crate::stage::{NamedWeight, StageError};
use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::ParamId;
use burn_pipeline_plan::plan::StageId;
use std::collections::HashMap;

#[derive(Debug)]
pub(crate) struct ApplyOutcome {
    /// The loss over all batches since the last step.
    pub(crate) loss: f64,
    /// The factor that turns gradients of these batches into those of `loss`.
    pub(crate) scale: f64,
    pub(crate) gradients: Finished,
}

impl Rank {
    /// Steps the weights with the accumulated gradients, and drops these. Then each stage gets the observed numbers of
    /// all microbatches ([`Stage::after_step`](crate::stage::Stage::after_step)). If a loss or gradient is NaN or
    /// infinite and the policy does not allow it, weights stay and the gradients are dropped; likewise for a first step
    /// without gradients, unless all rates are 0.
    ///
    /// # Errors
    /// Returns [`ExecuteError`] if another rank failed, a device reports an error, or the optimizer panics.
    pub(crate) fn apply(
        &mut self,
        learning_rate: &ModuleLearningRate,
        all_rates_zero: bool,
    ) -> Result<ApplyOutcome, ExecuteError> {
        if let non_finite @ Some(_) = self.refused_number(self.contract.non_finite()) {
            return Ok(self.skip(Finished { norm: None, non_finite, trains: true }));
        }
        let found = self.finish_gradients()?;
        let gradients = Finished { trains: found.trains || all_rates_zero, ..found };
        if gradients.non_finite.is_some() || !gradients.trains {
            return Ok(self.skip(gradients));
        }
        self.executor.refuse_gathered()?;
        self.executor.link().set_activity(Activity::Optimizing);
        let (rank, step, observed) = (self.number(), self.step, std::mem::take(&mut self.observed));
        self.changes_weights = true;
        for (stage, held) in self.executor.stages().iter_mut() {
            let doing = || format!("stepping the weights of stage {stage} in step {step}");
            caught(rank, doing, || {
                held.optimize(learning_rate.clone());
                Ok(())
            })?;
        }
        self.follow_rules(&observed)?;
        self.executor.refuse_unwritten_weights(step)?;
        // A rate of 0 moves no weight, so copies that are stepped otherwise would not show.
        if !all_rates_zero {
            self.sharing.refuse_diverged_once(&mut self.executor)?;
            self.refuse_drifted_once()?;
        }
        self.executor.link().set_activity(Activity::Idle);
        self.statistics = None;
        if self.settings.validate == Validate::FirstStep {
            self.executor.spec_check = SpecCheck::Off;
        }
        let contract = std::mem::replace(&mut self.contract, Contract::new(self.settings.reduction));
        let (loss, scale) = (contract.loss(), contract.scale());
        Ok(ApplyOutcome { loss, scale, gradients })
    }

    /// Takes over weights that the caller stepped, by their ids in the first copy of each stage (members of a
    /// tensor-parallel group take their pieces); other copies take them from there. Then stages get the observed
    /// numbers, and accumulated gradients are dropped.
    ///
    /// # Errors
    /// Returns [`ExecuteError`] if a value does not fit its parameter, or another rank failed.
    pub(crate) fn step_to(
        &mut self,
        values: &HashMap<ParamId, AnyTensor>,
        observed: &[Vec<f64>],
    ) -> Result<(), ExecuteError> {
        let rank = self.number();
        self.executor.gather_all_shards()?;
        let groups = self.executor.groups().clone();
        let known = self.known_ids()?;
        self.changes_weights = true;
        for (&stage, held) in self.executor.stages().iter_mut() {
            let holders = groups.of(stage);
            let known = known.get(&stage.index()).map(Vec::as_slice).unwrap_or_default();
            let own = |(place, held): (usize, NamedWeight)| {
                let whole = values.get(known.get(place).unwrap_or(&held.id))?.clone();
                let expected = holders.whole_shape(held.id, held.value.shape());
                if whole.shape() == expected {
                    return Some(Ok((held.id, holders.own_piece(held.id, whole))));
                }
                // Values that this rank holds whole are checked where they are replaced.
                if expected == held.value.shape() {
                    return Some(Ok((held.id, whole)));
                }
                let (got, expected) = (format!("{:?}", whole.shape().to_vec()), format!("{:?}", expected.to_vec()));
                Some(Err(StageError::Replaced { path: held.names.join(", "), got, expected }))
            };
            let own: Result<_, StageError> = held.named_weights().into_iter().enumerate().filter_map(own).collect();
            let replaced = own.and_then(|own| held.replace(&own));
            replaced.map_err(|source| ExecuteError::Module { rank, stage, source })?;
        }
        copy_weights(&mut self.executor, &self.placement)?;
        self.executor.exchanging(None, ReplicaGroup::broadcast_weights)?;
        self.sharing.copy_first(&mut self.executor)?;
        self.forget();
        self.executor.reshard_all()?;
        self.executor.release_all();
        self.follow_rules(observed)
    }

    /// The identifiers by which the caller knows the parameters of each stage: those of its first copy, in visiting
    /// order. Members and other copies made their layers themselves, with other identifiers.
    fn known_ids(&mut self) -> Result<HashMap<usize, Vec<ParamId>>, ExecuteError> {
        let stages = self.executor.stages().iter().map(|(&stage, held)| (stage, held.named_weights()));
        let stages: Vec<(StageId, Vec<NamedWeight>)> = stages.collect();
        let first = stages.into_iter().filter(|(stage, _)| stage.route() == 0 && self.answers_for(*stage));
        let ids = |(stage, weights): (StageId, Vec<NamedWeight>)| {
            (stage.index(), weights.iter().map(|weight| weight.id).collect::<Vec<ParamId>>())
        };
        let table = self.executor.gather(&first.map(ids).collect::<Vec<_>>())?;
        Ok(table.into_iter().flatten().collect())
    }

    /// Gives every stage the numbers observed since the last step. Stages that use them have whole parameters
    /// meanwhile, on all data-parallel replicas alike.
    fn follow_rules(&mut self, observed: &[Vec<f64>]) -> Result<(), ExecuteError> {
        let (rank, step) = (self.number(), self.step);
        let following = self.executor.stages().iter().filter(|(_, held)| held.follows_rule());
        for stage in following.map(|(&stage, _)| stage).collect::<Vec<_>>() {
            self.executor.gather_shards(stage)?;
            let Some(held) = self.executor.stages().get_mut(&stage) else { continue };
            let doing = || format!("changing stage {stage} after step {step}");
            let changed = caught(rank, doing, || Ok(held.after_step(observed)))?;
            changed.map_err(|source| ExecuteError::Module { rank, stage, source })?;
            self.executor.reshard(stage)?;
        }
        Ok(())
    }

    /// Leaves the weights unchanged and drops the accumulated gradients.
    fn skip(&mut self, gradients: Finished) -> ApplyOutcome {
        let (loss, scale) = (self.contract.loss(), self.contract.scale());
        self.forget();
        ApplyOutcome { loss, scale, gradients }
    }
}
