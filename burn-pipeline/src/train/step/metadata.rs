//! How a rank learns the tensor specs at its stages' boundaries; see [`StageMetadata`].
//!
//! 1. Declarations are used if every stage of every rank has declared its specs, which the facts of all stages say.
//! 2. Otherwise all stages run one microbatch of zeros per route, forward and backward, in model order: once with as
//!    many samples as the first microbatch, and once with one more. Weights and running statistics are restored;
//!    accumulated gradients are kept.
//! 3. If only some stages declared their specs, these are compared with what was found.

use super::rank::Rank;
use crate::execute::{ExecuteError, Purpose, ReplicaShare, Run, Seeding, SpecCheck};
use crate::link::Activity;
use crate::payload::{AnyTensor, StageMetadata, StagePort, Validate};
use crate::stage::{GradientStore, Microbatches, StageError};
use crate::train::error::BuildError;
use burn_pipeline_plan::plan::{Action, CheckOptions, CheckedPlan, Op, Placement, Plan, SkipEdge, StageId};
use std::collections::BTreeMap;
use std::time::Instant;

type Metadata = BTreeMap<StageId, StageMetadata>;

/// One microbatch per route: every `F` in the model's order, then every backward of the stages that train in reverse.
pub(crate) fn metadata_plan(
    placement: &Placement,
    skips: &[SkipEdge],
    first_trained: usize,
) -> Result<CheckedPlan, BuildError> {
    let row = |rank: usize| {
        let mut stages = placement.stages_of(rank);
        stages.sort_by_key(|stage| (stage.index(), stage.route()));
        let forwards = stages.iter().map(|&stage| Action::forward(stage, 0));
        let backwards = stages.iter().rev().map(|&stage| Action::backward(stage, 0));
        forwards.chain(backwards).collect::<Vec<_>>()
    };
    let rows = (0..placement.ranks()).map(row).collect();
    let plan =
        Plan::new("metadata", placement.clone(), vec![1; placement.routes()], rows)?.with_skips(skips.to_vec())?;
    Ok(plan.train_from(first_trained)?.with_transfers()?.check(&CheckOptions::default())?)
}

impl Rank {
    /// Learns the specs at the boundaries of this rank's stages, and compares tensors with them from now on according
    /// to the settings. All ranks call it with the same batches: zeros of the first microbatch's shape, and zeros with
    /// one sample more; with none if all stages have declared their specs.
    ///
    /// # Errors
    /// Returns [`StageError::Metadata`] if a declaration differs from what was found. Otherwise same as
    /// [`Rank::accumulate`].
    pub(crate) fn learn_metadata(
        &mut self,
        plan: &CheckedPlan,
        zeros: &[Microbatches],
    ) -> Result<Metadata, ExecuteError> {
        let declared = self.declared();
        let metadata = match zeros.is_empty() {
            true => declared,
            false => {
                let found = self.run_on_zeros(plan, zeros)?;
                self.compare(&declared, &found)?;
                found
            }
        };
        // Also without a comparison: a copy of a stage on another rank may lack the declaration.
        self.wait_for_comparisons()?;
        self.executor.link().set_activity(Activity::Idle);
        self.executor.spec_check = match self.settings.validate {
            Validate::Off => SpecCheck::Off,
            Validate::FirstStep | Validate::EveryMicrobatch => SpecCheck::Compare(metadata.clone()),
        };
        Ok(metadata)
    }

    fn declared(&mut self) -> Metadata {
        let stages = self.executor.stages().iter();
        stages.filter_map(|(&stage, held)| Some((stage, held.options().declared.as_ref()?.clone()))).collect()
    }

    fn run_on_zeros(&mut self, plan: &CheckedPlan, zeros: &[Microbatches]) -> Result<Metadata, ExecuteError> {
        let (reduction, executor) = (self.settings.reduction, &mut self.executor);
        let mut kept: Vec<(Vec<AnyTensor>, GradientStore)> = Vec::new();
        for held in executor.stages().values_mut() {
            // With names, since that brings running statistics up to date.
            let weights = held.named_weights().into_iter().map(|weight| weight.value);
            let weights = weights.filter(|value| value.dtype().is_float()).collect();
            let store = held.gradients().emptied();
            kept.push((weights, std::mem::replace(held.gradients(), store)));
        }
        let record = SpecCheck::Record(Metadata::default());
        let before = std::mem::replace(&mut executor.spec_check, record);
        let ran = zeros.iter().try_for_each(|batch| {
            executor.stages().values_mut().for_each(|held| held.gradients().begin(Some(0)));
            let seeding = Seeding { reduction, reference_samples: batch.size(0), factor: 1.0 };
            let share = ReplicaShare::default();
            executor.run(Run { plan, batch, seeding, purpose: Purpose::Metadata, began: Instant::now(), share })?;
            executor.stages().values_mut().for_each(|held| held.clear());
            Ok(())
        });
        // Also after an error.
        for (held, (weights, store)) in executor.stages().values_mut().zip(kept) {
            held.set_weights(weights);
            *held.gradients() = store;
        }
        let recorded = std::mem::replace(&mut executor.spec_check, before);
        ran?;
        match recorded {
            SpecCheck::Record(found) => Ok(found),
            _ => Ok(Metadata::default()),
        }
    }

    /// Refuses a declaration that differs from what was found.
    fn compare(&mut self, declared: &Metadata, found: &Metadata) -> Result<(), ExecuteError> {
        let rank = self.number();
        for (&stage, declared) in declared {
            for (port, op) in [
                (StagePort::Input, Op::Forward),
                (StagePort::Output, Op::Forward),
                (StagePort::OutputGradient, Op::Backward),
                (StagePort::InputGradient, Op::Backward),
            ] {
                let specs = declared.at(port).zip(found.get(&stage).and_then(|found| found.at(port)));
                let Some(mismatch) = specs.and_then(|(declared, found)| found.mismatch(declared)) else { continue };
                let (tensor, expected, got) = (mismatch.tensor, mismatch.expected, mismatch.got);
                let source = StageError::Metadata { port, tensor, expected, got };
                return Err(ExecuteError::Stage { rank, stage, microbatch: 0, op, source });
            }
        }
        Ok(())
    }

    /// Waits until no rank can refuse a declaration any more. Ranks in processes recover from a refusal only if none
    /// of them has ended the call.
    fn wait_for_comparisons(&mut self) -> Result<(), ExecuteError> {
        let deadline = self.executor.deadline();
        self.executor.link().set_activity(Activity::Gathering);
        self.executor.link().barrier(deadline).map_err(|source| self.link_error(source))
    }
}
