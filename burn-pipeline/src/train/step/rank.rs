//! One rank of a training job: its stages, and its state between batches.

use super::contract::Contract;
use super::equal::equalize_copies;
use super::panic::caught;
use crate::data_parallel::Stages;
use crate::execute::{Aside, ExecuteError, Executor};
use crate::link::LinkError;
use crate::payload::{AnyTensor, Validate};
use crate::stage::{ForwardSeed, Reduction, mixed};
use crate::train::non_finite::OnNonFinite;
use crate::train::shared::{SharedParameter, SharedReport, Sharing};
use burn::module::ParamId;
use burn_pipeline_plan::plan::{Placement, StageId};
use std::collections::{BTreeMap, HashMap};

/// Saved running statistics, by stage.
pub(super) type Statistics = BTreeMap<StageId, HashMap<ParamId, AnyTensor>>;

/// What the user chose that ranks read in each step.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Settings {
    pub(crate) reduction: Reduction,
    /// The maximum norm of the gradients over all ranks.
    pub(crate) clip_norm: Option<f64>,
    pub(crate) on_non_finite: OnNonFinite,
    /// Which tensors at stage boundaries are compared with the stages' metadata.
    pub(crate) validate: Validate,
    /// True if this process wants the last stage's outputs of training steps; on a rank, if any process does.
    pub(crate) outputs: bool,
}

impl Settings {
    /// Returns true if the stages' metadata must be learned before they train.
    pub(crate) fn learns_metadata(&self) -> bool {
        self.validate != Validate::Off
    }
}

pub(crate) struct Rank {
    pub(crate) executor: Executor,
    pub(crate) placement: Placement,
    pub(crate) settings: Settings,
    pub(crate) contract: Contract,
    /// The tied parameters, which a load makes the next step compare again.
    pub(crate) sharing: Sharing,
    /// The step of the next batch, counted from 1.
    pub(super) step: u64,
    /// The observed numbers of each microbatch since the last step.
    pub(super) observed: Vec<Vec<f64>>,
    /// True if a step has found gradients.
    pub(super) trains: bool,
    /// True if gradients were compared within its tensor-parallel group.
    pub(super) members_compared: bool,
    /// True if the copies of its stages were compared after a step.
    pub(super) copies_compared: bool,
    /// Running statistics before the first batch since the last step, if there was one.
    pub(super) statistics: Option<Statistics>,
    /// True if these are dropped when the next call begins.
    pub(super) statistics_end: bool,
    /// True if the current call has begun to change weights.
    pub(crate) changes_weights: bool,
    /// The number of calls that have ended without a failure.
    pub(crate) calls: u64,
    /// Stages on standby, beside the running ones.
    pub(crate) standby: Option<Standby>,
}

/// Stages with another cut or placement, built and agreed on by all ranks, that do not run.
pub(crate) struct Standby {
    aside: Aside,
    placement: Placement,
    sharing: Sharing,
}

impl Rank {
    /// Starts a rank. All ranks do it with the same declarations.
    ///
    /// 1. Members of a tensor-parallel group take the first one's values of what is not cut. Route 1 of a bidirectional
    ///    placement takes route 0's weights; data-parallel replicas take the first one's.
    /// 2. Tied parameters are found, and all copies take the first one's value. This also runs without declarations, to
    ///    refuse parameters that are tied but not declared.
    /// 3. Parameters are sharded on stages that request it and, with `shard_all`, on stages that do not choose.
    ///
    /// # Errors
    /// Returns [`ExecuteError::Shared`] if copies of a parameter would diverge, and [`ExecuteError::NotByElement`] if
    /// an optimizer cannot step shards of parameters. Also fails if another rank failed.
    pub(crate) fn start(
        mut executor: Executor,
        placement: Placement,
        settings: Settings,
        shared: &[SharedParameter],
        shard_all: bool,
    ) -> Result<Self, ExecuteError> {
        let started = Self::agree(&mut executor, &placement, shared, shard_all);
        // Abort while the link exists: a rank that only closed it would give no reason.
        let sharing = started.inspect_err(|error| executor.fail(error))?;
        Ok(Self {
            executor,
            placement,
            settings,
            contract: Contract::new(settings.reduction),
            sharing,
            step: 1,
            observed: Vec::new(),
            trains: false,
            members_compared: false,
            copies_compared: false,
            statistics: None,
            statistics_end: false,
            changes_weights: false,
            calls: 0,
            standby: None,
        })
    }

    /// Keeps other stages on standby beside the running ones, replacing earlier standby stages. All ranks do it with
    /// the same declarations. The steps are those of [`Rank::start`].
    ///
    /// # Errors
    /// As [`Rank::start`]. [`ExecuteError::Shared`] is the same on all ranks, and leaves them unchanged.
    pub(crate) fn stand_by(
        &mut self,
        stages: Stages,
        placement: Placement,
        shared: &[SharedParameter],
        shard_all: bool,
    ) -> Result<Vec<SharedReport>, ExecuteError> {
        self.standby = None;
        let mut aside = self.executor.aside(stages);
        self.executor.swap(&mut aside);
        let agreed = Self::agree(&mut self.executor, &placement, shared, shard_all);
        self.executor.swap(&mut aside);
        let sharing = agreed?;
        let reports = sharing.reports.clone();
        self.standby = Some(Standby { aside, placement, sharing });
        Ok(reports)
    }

    pub(crate) fn swap(&mut self) {
        let Some(standby) = &mut self.standby else { return };
        self.executor.swap(&mut standby.aside);
        std::mem::swap(&mut self.placement, &mut standby.placement);
        std::mem::swap(&mut self.sharing, &mut standby.sharing);
    }

    /// The steps of [`Rank::start`].
    fn agree(
        executor: &mut Executor,
        placement: &Placement,
        shared: &[SharedParameter],
        shard_all: bool,
    ) -> Result<Sharing, ExecuteError> {
        let rank = executor.rank();
        caught(rank, || "giving all ranks of a group equal weights".to_owned(), || executor.equalize_members())?;
        equalize_copies(executor, placement)?;
        let sharing = Sharing::agree(executor, placement, shared)?;
        sharing.copy_first(executor)?;
        sharing.name_copies(executor);
        executor.stages().values_mut().for_each(|held| held.settle_types());
        executor.update_trained()?;
        executor.shard(shard_all)?;
        sharing.refuse_half_sharded(executor)?;
        Ok(sharing)
    }

    /// The rank's number in the job.
    pub(crate) fn number(&self) -> usize {
        self.executor.rank()
    }

    pub(crate) fn replica(&self) -> usize {
        self.executor.grid().replica()
    }

    /// Returns true if it is in the first data-parallel replica, which answers for all, because replicas are equal.
    pub(crate) fn is_first_replica(&self) -> bool {
        self.replica() == 0
    }

    /// Returns true if it is the first of all ranks that hold a stage, or pieces of the vocabulary. What is not cut is
    /// equal on all of them.
    pub(crate) fn answers_for(&self, stage: StageId) -> bool {
        self.executor.groups().of(stage).is_first()
    }

    /// Makes the forwards of the next batch draw random numbers from this seed, the stage and the microbatch only;
    /// `None` leaves the generator unchanged. All ranks must get the same value.
    pub(crate) fn draw_from(&mut self, seed: Option<u64>) {
        for (stage, held) in self.executor.stages().iter_mut() {
            held.engine_mut().set_forward_seed(ForwardSeed(seed.map(|seed| mixed(seed, stage.index() as u64))));
        }
    }

    /// Reads stages while their sharded parameters are gathered; `doing` names the call if `read` panics. All ranks
    /// call it.
    pub(crate) fn with_whole_weights<T>(
        &mut self,
        doing: &str,
        read: impl FnOnce(&mut Self) -> Result<T, ExecuteError>,
    ) -> Result<T, ExecuteError> {
        self.executor.gather_all_shards()?;
        let result = caught(self.number(), || doing.to_owned(), || read(self));
        self.executor.release_all();
        result
    }

    /// Gives all copies of every stage the first one's weights, and drops accumulated gradients. All ranks call it.
    pub(crate) fn equalize(&mut self) -> Result<(), ExecuteError> {
        self.executor.gather_all_shards()?;
        equalize_copies(&mut self.executor, &self.placement)?;
        self.forget();
        // From now on other parameters, or none, may be trained.
        self.trains = false;
        self.executor.reshard_all()?;
        self.executor.release_all();
        Ok(())
    }

    /// Drops gradients and losses accumulated since the last step.
    pub(crate) fn forget(&mut self) {
        self.executor.stages().values_mut().for_each(|stage| stage.clear());
        self.executor.group.clear();
        self.observed.clear();
        self.statistics_end = true;
        self.contract = Contract::new(self.settings.reduction);
    }

    /// An error of this rank's link, outside of any task.
    pub(crate) fn link_error(&self, source: LinkError) -> ExecuteError {
        ExecuteError::Link { rank: self.number(), task: None, source }
    }
}
