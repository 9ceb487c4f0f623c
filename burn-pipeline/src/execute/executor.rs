//! One rank: its stages, its end of the link, and how user code runs there.
//!
//! Guarantees: a panic or refusal in user code becomes an error that names rank, stage, microbatch and operation.

use super::error::ExecuteError;
use super::options::RunOptions;
use super::specs::SpecCheck;
use crate::data_parallel::{ReplicaGroup, Stages};
use crate::link::{Collectives, Link, LinkError, SharedLink};
use crate::panics::{NO_TEXT, text_of};
use crate::payload::{Payload, StagePort};
use crate::ranks::{Grid, RankSet};
use crate::stage::{ErasedStage, StageError};
use crate::vocabulary::StageGroups;
use burn::module::ParamId;
use burn::tensor::Device;
use burn_pipeline_plan::cost::PartitionError;
use burn_pipeline_plan::plan::{MicrobatchTask, StageId, Task};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// How many rows check each task's results; see `device.rs`.
const WATCHED_ROWS: usize = 2;

pub(crate) struct Executor {
    pub(super) link: SharedLink,
    pub(super) stages: Stages,
    pub(super) device: Device,
    pub(super) options: RunOptions,
    grid: Grid,
    pub(crate) group: ReplicaGroup,
    /// The tensor-parallel group of this rank, and the ranks that hold the shards of the vocabulary.
    pub(super) groups: StageGroups,
    /// Which tensor specs this rank records or compares in training. Recorded specs are taken from here.
    pub(crate) spec_check: SpecCheck,
    /// How many rows still check each task's results.
    pub(super) watched_rows: usize,
    /// True once a row of a step, and one of an evaluation, has compared the members' replicated tensors.
    pub(super) compared: [bool; 2],
}

/// Standby stages of a rank, with their state.
pub(crate) struct Aside {
    stages: Stages,
    group: ReplicaGroup,
    spec_check: SpecCheck,
}

impl std::fmt::Debug for Executor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Executor").field("rank", &self.link.rank()).field("device", &self.device).finish()
    }
}

impl Executor {
    /// A rank that runs these stages on this device, with its position among data-parallel replicas and its groups. The
    /// link joins the ranks of all replicas, in the order of [`Grid`].
    pub(crate) fn new(
        link: SharedLink,
        stages: Stages,
        device: Device,
        options: RunOptions,
        grid: Grid,
        groups: StageGroups,
    ) -> Self {
        let group = ReplicaGroup::new(&groups.replicas, &stages);
        let (spec_check, watched_rows, compared) = (SpecCheck::Off, WATCHED_ROWS, [false; 2]);
        Self { link, stages, device, options, grid, group, groups, spec_check, watched_rows, compared }
    }

    /// The rank's tensor-parallel group, and the ranks that hold the shards of the vocabulary.
    pub(crate) fn groups(&self) -> &StageGroups {
        &self.groups
    }

    /// Standby stages for this rank, to be run in place of the active ones.
    pub(crate) fn aside(&self, stages: Stages) -> Aside {
        let group = ReplicaGroup::new(&self.groups.replicas, &stages);
        Aside { stages, group, spec_check: SpecCheck::Off }
    }

    pub(crate) fn swap(&mut self, aside: &mut Aside) {
        std::mem::swap(&mut self.stages, &mut aside.stages);
        std::mem::swap(&mut self.group, &mut aside.group);
        std::mem::swap(&mut self.spec_check, &mut aside.spec_check);
        self.watched_rows = WATCHED_ROWS;
    }

    /// The rank's position among pipeline ranks, replicas and members of its group.
    pub(crate) fn grid(&self) -> Grid {
        self.grid.clone()
    }

    /// The rank in the job.
    pub(crate) fn rank(&self) -> usize {
        self.link.rank()
    }

    /// The rank's end of the link.
    pub(crate) fn link(&mut self) -> &mut dyn Link {
        &mut self.link
    }

    /// Calls `f` with the collectives of the link; `None` if it has none.
    pub(crate) fn with_collectives<T>(&self, f: impl FnOnce(&mut dyn Collectives) -> T) -> Option<T> {
        self.link.with_collectives(f)
    }

    /// A set of this rank and others, by their numbers in the job.
    pub(crate) fn set_of(&self, ranks: &[usize]) -> RankSet {
        let place = ranks.iter().position(|&rank| rank == self.rank()).unwrap_or_default();
        RankSet::new(place, ranks.iter().copied(), self.link.stage_end(), self.timeout())
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    pub(super) fn parameters(&self) -> impl Iterator<Item = ParamId> {
        self.stages.values().flat_map(|held| held.parameters())
    }

    /// The rank's stages, in model order.
    pub(crate) fn stages(&mut self) -> &mut Stages {
        &mut self.stages
    }

    /// The rank's stages with its end of the link.
    pub(crate) fn stages_and_link(&mut self) -> (&mut Stages, &mut dyn Link) {
        (&mut self.stages, &mut self.link)
    }

    /// The timeout of every wait.
    pub(crate) fn timeout(&self) -> Duration {
        self.options.timeout
    }

    /// The deadline of a wait that starts now.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.options.timeout
    }

    /// Runs user code of the task's stage, then waits for the device if the options require it.
    pub(super) fn guarded<T>(
        &mut self,
        task: MicrobatchTask,
        f: impl FnOnce(&mut dyn ErasedStage) -> Result<T, StageError>,
    ) -> Result<T, ExecuteError> {
        let result = self.caught(task.stage(), task, f)?;
        self.synchronize(task)?;
        Ok(result)
    }

    /// Waits for the device if the options require it.
    pub(super) fn synchronize(&mut self, task: MicrobatchTask) -> Result<(), ExecuteError> {
        if !self.options.tuning.synchronize {
            return Ok(());
        }
        self.device.sync().map_err(|e| self.stage_error(task, StageError::Device(e.to_string())))
    }

    /// Runs user code for a task, on its stage or on the shard of the vocabulary with the number `held`. A panic
    /// becomes an error that names stage, microbatch and operation. A collective inside the stage can only raise a link
    /// error by unwinding; that error is returned unchanged.
    pub(super) fn caught<T>(
        &mut self,
        held: StageId,
        task: MicrobatchTask,
        f: impl FnOnce(&mut dyn ErasedStage) -> Result<T, StageError>,
    ) -> Result<T, ExecuteError> {
        let (rank, stage) = (self.rank(), task.stage());
        let held = self.stages.get_mut(&held).ok_or(ExecuteError::NoStage { rank, stage: held })?;
        // Unwind safety: after a panic the run ends, and `fail` drops everything that the stage stored for it.
        match catch_unwind(AssertUnwindSafe(|| f(held.as_mut()))) {
            Ok(result) => result.map_err(|source| self.stage_error(task, source)),
            Err(panic) => {
                if let Some(source) = panic.downcast_ref::<LinkError>() {
                    return Err(self.link_error(Some(task.into()), source.clone()));
                }
                let mut message = panic_message(panic.as_ref());
                // Burn's operations, and backends' storage, say it so.
                if held.options().precision.is_some() && message.contains("dtype mismatch") {
                    message.push_str(OF_ANOTHER_TYPE);
                }
                Err(ExecuteError::Panic { rank, stage, microbatch: task.microbatch(), op: task.op(), message })
            }
        }
    }

    /// Records or compares the payload at a port of the task's stage, if enabled.
    pub(super) fn check_spec(
        &mut self,
        task: MicrobatchTask,
        port: StagePort,
        payload: impl FnOnce() -> Payload,
    ) -> Result<(), ExecuteError> {
        if self.spec_check == SpecCheck::Off {
            return Ok(());
        }
        let checked = self.spec_check.check(task.stage(), port, &payload());
        checked.map_err(|source| self.stage_error(task, source))
    }

    /// An error of a stage in a task.
    pub(super) fn stage_error(&self, task: MicrobatchTask, source: StageError) -> ExecuteError {
        let (stage, microbatch) = (task.stage(), task.microbatch());
        ExecuteError::Stage { rank: self.rank(), stage, microbatch, op: task.op(), source }
    }

    /// An error of the link, in a task of the row or outside of it. If a task's tensor could not be sent because of its
    /// device, the error is the device's.
    pub(super) fn link_error(&self, task: Option<Task>, source: LinkError) -> ExecuteError {
        if let (Some(task), LinkError::Unsent { source, .. }) = (task, &source)
            && let Some(error) = self.unread(task, source)
        {
            return error;
        }
        ExecuteError::Link { rank: self.rank(), task, source }
    }

    /// The error of a task whose input has neither arrived nor been announced.
    pub(super) fn no_input(&self, task: Task) -> ExecuteError {
        ExecuteError::NoInput { rank: self.rank(), task }
    }
}

/// What to do where a stage computes with tensors of two element types.
const OF_ANOTHER_TYPE: &str = "; with `Builder::precision` a stage gets rounded parameters: cast its inputs to their \
    type, and what needs more digits to f32, keep parameters in f32 (`Precision::keep`), or do not keep those around \
    which the module does not cast; see the guide, `half_precision`";

pub(crate) fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    text_of(panic)
        .or_else(|| panic.downcast_ref::<LinkError>().map(ToString::to_string))
        .or_else(|| panic.downcast_ref::<PartitionError>().map(ToString::to_string))
        .unwrap_or_else(|| NO_TEXT.to_owned())
}
