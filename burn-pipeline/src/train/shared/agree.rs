//! How all ranks agree on what is shared.
//!
//! Guarantees: every rank comes to the same result, since each applies the same rules to the same table; so groups are
//! formed, and later reduced, in one order everywhere.
//!
//! 1. Every rank gathers every rank's parameters: stage, path, identifier, shape, element type, trained or not.
//! 2. Each finds the groups in them ([`Sharing::find`]).
//! 3. All form the groups' communicators in the same order.

use super::declare::SharedParameter;
use super::held::HeldParameter;
use super::sharing::{Copy, Sharing};
use crate::execute::{ExecuteError, Executor};
use crate::link::gather;
use crate::plan::{Placement, StageId};
use crate::stage::SharedError;
use std::collections::BTreeMap;

impl Sharing {
    /// Gathers what every rank holds, and forms the groups. All ranks must call it.
    pub(crate) fn agree(
        executor: &mut Executor,
        placement: &Placement,
        declared: &[SharedParameter],
    ) -> Result<Self, ExecuteError> {
        let rank = executor.rank();
        let mut rows = Vec::new();
        for (&stage, held) in executor.stages().iter() {
            rows.extend(held.named_parameters().into_iter().map(|parameter| HeldParameter::new(stage, parameter)));
        }
        let deadline = executor.deadline();
        let rows = gather(executor.link(), &rows, deadline);
        let rows: Vec<Vec<HeldParameter>> = rows.map_err(|source| ExecuteError::Link { rank, task: None, source })?;
        for (peer, row) in rows.iter().enumerate() {
            let stages = row.iter().map(|parameter| parameter.stage);
            let stages = stages.filter(|&stage| !executor.groups().vocabulary.holds(stage));
            ExecuteError::refuse_unknown(rank, peer, placement, stages)?;
        }
        let grid = executor.grid();
        // Each data-parallel replica shares among its own ranks.
        let own = |rank: usize| grid.rank_of(grid.pipeline_rank_of(rank)) == rank;
        let rows: Vec<HeldParameter> =
            rows.into_iter().enumerate().filter(|(rank, _)| own(*rank)).flat_map(|(_, rows)| rows).collect();
        let found = Self::find(rows, placement, declared);
        let mut sharing = found.map_err(|source| ExecuteError::Shared { rank, source })?;
        let in_replica = |ranks: &[usize], replica| ranks.iter().map(|&place| grid.rank_in(place, replica)).collect();
        let of = |replica| sharing.groups.iter().map(move |group| in_replica(&group.ranks, replica));
        let groups: Vec<Vec<usize>> = (0..grid.replicas()).flat_map(of).collect();
        sharing.first = grid.replica() * sharing.groups.len();
        sharing.groups.iter_mut().for_each(|group| group.ranks = in_replica(&group.ranks, grid.replica()));
        let formed = executor.link().form_groups(&groups, deadline);
        formed.map_err(|source| ExecuteError::Link { rank, task: None, source })?;
        if rank == 0 {
            sharing.reports.iter().for_each(|report| tracing::info!(%report, "shared parameter"));
        }
        Ok(sharing)
    }

    /// Refuses parameters of which only some copies are sharded over data-parallel replicas. All ranks must call it.
    pub(crate) fn refuse_half_sharded(&self, executor: &mut Executor) -> Result<(), ExecuteError> {
        // With one replica nothing is sharded.
        if self.groups.is_empty() || executor.grid().replicas() < 2 {
            return Ok(());
        }
        let (rank, deadline) = (executor.rank(), executor.deadline());
        let stages: Vec<StageId> = executor.stages().keys().copied().collect();
        let own: Vec<(usize, bool)> = stages.iter().map(|stage| (stage.index(), executor.shards(*stage))).collect();
        let table = gather(executor.link(), &own, deadline);
        let table = table.map_err(|source| ExecuteError::Link { rank, task: None, source })?;
        let sharded: BTreeMap<usize, bool> = table.into_iter().flatten().collect();
        for member in self.groups.iter().flat_map(|group| &group.members) {
            let of = |copy: &Copy| sharded.get(&copy.stage.index());
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
