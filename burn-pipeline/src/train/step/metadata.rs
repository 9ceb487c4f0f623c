//! How a rank comes to know what crosses its stages' boundaries; see [`StageMetadata`].
//!
//! 1. All ranks vote: the mode is static if every stage of every rank has declared its forms.
//! 2. Else all stages run one microbatch of zeros a route, forward and backward, in the order of the model, once with
//!    as many samples as the first microbatch has and once with one more. The weights, and running statistics among
//!    them, are put back; gradients gathered so far are kept.
//! 3. Links are told what each rank will send: what it sent of the first zeros, or what follows from the declarations. So
//!    the first real message finds its receive posted, where a link posts receives ([`Link::expect`]).
//! 4. Forms that were declared in a pipeline that is not all static are compared with what was found.

use crate::execute::{ExecuteError, RecordedSpecs, ReplicaShare, Run, Seeding, SpecCheck, expected_messages};
#[cfg(doc)]
use crate::link::Link;
use crate::link::{Activity, expect_all, gather};
use crate::pass::insert_transfers;
use crate::plan::{Action, CheckOptions, CheckedPlan, Op, Placement, Plan, SkipEdge, StageId};
use crate::stage::{
    AnyTensor, GradientStore, MetadataMode, Microbatches, StageError, StageMetadata, StagePort, Validate,
};
use crate::train::build_error::BuildError;
use crate::train::step::rank::Rank;
use std::collections::BTreeMap;
use std::time::Instant;

/// The metadata of a rank's stages.
pub(crate) type Known = BTreeMap<StageId, StageMetadata>;

/// One microbatch a route: every `F` in the model's order, then every `B` back.
pub(crate) fn learning_plan(placement: &Placement, skips: Vec<SkipEdge>) -> Result<CheckedPlan, BuildError> {
    let row = |rank: usize| {
        let mut stages = placement.stages_of(rank);
        stages.sort_by_key(|stage| (stage.index(), stage.replica()));
        let forwards = stages.iter().map(|&stage| Action::forward(stage, 0));
        let backwards = stages.iter().rev().map(|&stage| Action::backward(stage, 0));
        forwards.chain(backwards).collect::<Vec<_>>()
    };
    let rows = (0..placement.ranks()).map(row).collect();
    let plan = Plan::new("metadata", placement.clone(), vec![1; placement.routes()], rows)?.with_skips(skips)?;
    Ok(insert_transfers(&plan)?.check(&CheckOptions::default())?)
}

impl Rank {
    /// Learns what crosses the boundaries of this rank's stages, and compares from now on as `validate` says. All
    /// ranks call it, with the same batches: zeros of the first microbatch's shape, and with one sample more a
    /// microbatch.
    ///
    /// # Errors
    /// [`StageError::Metadata`] where what was declared is not what was found; else as [`Rank::accumulate`].
    pub fn learn(
        &mut self,
        plan: &CheckedPlan,
        zeros: &[Microbatches],
        validate: Validate,
    ) -> Result<(MetadataMode, BTreeMap<StageId, StageMetadata>), ExecuteError> {
        let declared = self.declared();
        let is_static = declared.len() == self.executor().stages().len();
        let voted = self.vote(is_static);
        let mode = self.told(voted)?;
        let learned = match mode {
            MetadataMode::Static => {
                let sent = expected_messages(plan.plan(), self.executor().grid(), &declared);
                RecordedSpecs { stages: declared, sent }
            }
            MetadataMode::Dynamic => {
                let found = self.run_on_zeros(plan, zeros)?;
                let compared = self.compare(&declared, &found.stages);
                self.told(compared)?;
                found
            }
        };
        let RecordedSpecs { stages: known, sent } = learned;
        let (rank, deadline) = (self.executor().rank(), self.executor().deadline());
        self.executor().link().announce(Activity::Gathering);
        let expected = expect_all(self.executor().link(), &sent, deadline);
        self.told(expected.map_err(|source| ExecuteError::Link { rank, task: None, source }))?;
        self.executor().link().announce(Activity::Idle);
        self.watch_forms(validate, known.clone());
        Ok((mode, known))
    }

    fn declared(&mut self) -> Known {
        let stages = self.executor().stages().iter();
        stages.filter_map(|(&stage, held)| Some((stage, held.declared()?.clone()))).collect()
    }

    /// The one mode of all ranks.
    fn vote(&mut self, is_static: bool) -> Result<MetadataMode, ExecuteError> {
        let (rank, deadline) = (self.executor().rank(), self.executor().deadline());
        let link = self.executor().link();
        link.announce(Activity::Gathering);
        let votes = gather(link, &is_static, deadline);
        let votes = votes.map_err(|source| ExecuteError::Link { rank, task: None, source })?;
        let all = votes.into_iter().all(|vote| vote);
        Ok(if all { MetadataMode::Static } else { MetadataMode::Dynamic })
    }

    fn run_on_zeros(&mut self, plan: &CheckedPlan, zeros: &[Microbatches]) -> Result<RecordedSpecs, ExecuteError> {
        let reduction = self.reduction();
        let executor = self.executor();
        let mut kept: Vec<(Vec<AnyTensor>, GradientStore)> = Vec::new();
        for held in executor.stages().values_mut() {
            held.settle();
            let weights = held.weights().into_iter().map(|(_, weight)| weight).collect();
            let store = GradientStore::new(held.gradients().accumulation());
            kept.push((weights, std::mem::replace(held.gradients(), store)));
        }
        *executor.spec_check_mut() = SpecCheck::Record(RecordedSpecs::default());
        for batch in zeros {
            executor.stages().values_mut().for_each(|held| held.begin(Some(0)));
            let seeding = Seeding { reduction, reference_samples: batch.size(0) };
            let part = ReplicaShare::default();
            executor.run(Run { plan, batch, seeding, train: true, began: Instant::now(), share: part })?;
            executor.stages().values_mut().for_each(|held| held.clear());
        }
        for (held, (weights, store)) in executor.stages().values_mut().zip(kept) {
            held.settle();
            held.set_weights(weights);
            *held.gradients() = store;
        }
        match std::mem::take(executor.spec_check_mut()) {
            SpecCheck::Record(learned) => Ok(learned),
            _ => Ok(RecordedSpecs::default()),
        }
    }

    /// Refuses what was declared and is not so.
    fn compare(&mut self, declared: &Known, found: &Known) -> Result<(), ExecuteError> {
        let rank = self.executor().rank();
        for (&stage, declared) in declared {
            for port in [StagePort::Input, StagePort::Output] {
                let forms = declared.at(port).zip(found.get(&stage).and_then(|found| found.at(port)));
                let Some(mismatch) = forms.and_then(|(declared, found)| found.mismatch(declared)) else { continue };
                let (tensor, expected, got) = (mismatch.tensor, mismatch.expected, mismatch.got);
                let source = StageError::Metadata { port, tensor, expected, got };
                return Err(ExecuteError::Stage { rank, stage, microbatch: 0, op: Op::Forward, source });
            }
        }
        Ok(())
    }
}
