//! How all ranks agree on tied parameters.
//!
//! Guarantees: every rank gets the same result, because each applies the same rules to tables that differ only in ids.
//! So groups are numbered, and later summed, in the same order everywhere.
//!
//! 1. Ranks exchange their parameters: stage, path, id, shape, element type, trained or not, and the axis along which
//!    each is cut.
//! 2. Each finds the groups in them ([`Sharing::find`]).
//! 3. All number the groups in the same order, one for each data-parallel replica and each place in the
//!    tensor-parallel groups: pieces are added to the pieces at the same place, and whole parameters are added alike on
//!    all members. A link with collectives of its own forms the groups as sets of ranks.

use super::declare::SharedParameter;
use super::sharing::{HeldParameter, Sharing};
use crate::execute::{ExecuteError, Executor};
use crate::ranks::Grid;
use crate::stage::SharedError;
use burn_pipeline_plan::plan::{Placement, StageId};
use std::collections::BTreeMap;

impl Sharing {
    /// Exchanges what every rank holds, and creates the groups. All ranks must call it.
    pub(crate) fn agree(
        executor: &mut Executor,
        placement: &Placement,
        declared: &[SharedParameter],
    ) -> Result<Self, ExecuteError> {
        let rank = executor.rank();
        let (mut rows, members) = (Vec::new(), executor.groups().members.clone());
        for (&stage, held) in executor.stages().iter() {
            let parameters = held.named_parameters().into_iter();
            rows.extend(parameters.map(|parameter| HeldParameter::new(stage, parameter, &members)));
        }
        let rows: Vec<Vec<HeldParameter>> = executor.gather(&rows)?;
        for (peer, row) in rows.iter().enumerate() {
            let stages = row.iter().map(|parameter| parameter.stage);
            let stages = stages.filter(|&stage| !executor.groups().vocabulary.holds(stage));
            ExecuteError::refuse_unknown(rank, peer, placement, stages)?;
        }
        let grid = executor.grid();
        // Each data-parallel replica shares among its own ranks, and each member with those at its place.
        let own = |rank: usize| grid.rank_of(grid.pipeline_rank_of(rank)) == rank;
        let rows: Vec<HeldParameter> =
            rows.into_iter().enumerate().filter(|(rank, _)| own(*rank)).flat_map(|(_, rows)| rows).collect();
        let found = Self::find(rows, placement, declared, |pipeline_rank| grid.size_of(pipeline_rank));
        let mut sharing = found.map_err(|source| ExecuteError::Shared { rank, source })?;
        let (groups, deadline) = (sharing.number_groups(&grid), executor.deadline());
        let formed = executor.with_collectives(|collectives| collectives.form_sets(&groups, deadline));
        formed.transpose().map_err(|source| ExecuteError::Link { rank, task: None, source })?;
        if rank == 0 {
            sharing.reports.iter().for_each(|report| tracing::info!(%report, "shared parameter"));
        }
        Ok(sharing)
    }

    /// The ranks of all groups in the job, in the same order on all ranks. Sets the numbers and ranks of this rank's
    /// own groups.
    fn number_groups(&mut self, grid: &Grid) -> Vec<Vec<usize>> {
        let mut all = Vec::new();
        let own_place = (grid.replica(), grid.member());
        for group in &mut self.groups {
            let of_pipeline = std::mem::take(&mut group.ranks);
            let size = of_pipeline.first().map_or(1, |&first| grid.size_of(first));
            for place in (0..grid.replicas()).flat_map(|replica| (0..size).map(move |member| (replica, member))) {
                let ranks: Vec<usize> = of_pipeline.iter().map(|&rank| grid.rank_at(rank, place.0, place.1)).collect();
                if place == own_place {
                    (group.number, group.ranks) = (all.len(), ranks.clone());
                }
                all.push(ranks);
            }
        }
        all
    }

    /// Refuses parameters of which only some copies are sharded over data-parallel replicas. All ranks must call it.
    pub(crate) fn refuse_half_sharded(&self, executor: &mut Executor) -> Result<(), ExecuteError> {
        // With one replica nothing is sharded.
        if self.groups.is_empty() || executor.grid().replicas() < 2 {
            return Ok(());
        }
        let rank = executor.rank();
        let stages: Vec<StageId> = executor.stages().keys().copied().collect();
        let own: Vec<(usize, bool)> =
            stages.iter().map(|stage| (stage.index(), executor.group.is_sharded(*stage))).collect();
        let table = executor.gather(&own)?;
        let sharded: BTreeMap<usize, bool> = table.into_iter().flatten().collect();
        for member in self.groups.iter().flat_map(|group| &group.members) {
            let of = |copy: &HeldParameter| sharded.get(&copy.stage.index());
            let first = &member.copies[0];
            if let Some(other) = member.copies.iter().find(|copy| of(copy) != of(first)) {
                let (stage, first_stage) = (other.stage.index(), first.stage.index());
                let source = SharedError::HalfSharded { name: member.name.clone(), stage, first_stage };
                return Err(ExecuteError::Shared { rank, source: Box::new(source) });
            }
        }
        Ok(())
    }
}
