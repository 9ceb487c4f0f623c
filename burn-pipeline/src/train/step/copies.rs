//! Compares copies of a stage: data-parallel replicas, both routes of a bidirectional placement, and what the members
//! of a tensor-parallel group hold whole.
//!
//! Guarantees: copies that are no longer equal are an error after the first step that moves weights (its learning rate
//! is not 0), and cannot be saved. They start equal and get equal gradients, so they can diverge only by optimizers
//! that differ (made from one process's arguments, or by a counter), code that changes weights of one copy, or devices
//! that compute differently.
//!
//! 1. Each rank computes checksums of its stages (CRC-32): of the weights that it holds whole, of the pieces of its
//!    place in a group, and of integers and truth values.
//! 2. All ranks get all checksums, and compare those of the same stage and place.
//!
//! Sharded parameters have no copies: each shard is one replica's.

use super::rank::Rank;
use crate::execute::ExecuteError;
use burn_pipeline_plan::plan::StageId;
use std::collections::BTreeMap;

/// Two ranks whose copies of a stage differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Drifted {
    pub(crate) stage: usize,
    pub(crate) first: usize,
    pub(crate) other: usize,
}

/// A stage's index; for pieces the place in the group, and after these places those of buffers; and the checksum.
type Sum = (usize, Option<usize>, u32);

impl Rank {
    /// After the first step that moves weights: refuses copies that differ. All ranks call it.
    pub(super) fn refuse_drifted_once(&mut self) -> Result<(), ExecuteError> {
        if std::mem::replace(&mut self.copies_compared, true) {
            return Ok(());
        }
        match self.drifted()? {
            None => Ok(()),
            Some(Drifted { stage, first, other }) => {
                Err(ExecuteError::Drifted { rank: self.number(), stage, first, other })
            }
        }
    }

    /// The first two ranks whose copies of a stage differ. All ranks call it.
    pub(crate) fn drifted(&mut self) -> Result<Option<Drifted>, ExecuteError> {
        let grid = self.executor.grid();
        let has_copies = grid.replicas() > 1 || grid.largest_group() > 1 || self.placement.routes() > 1;
        if !has_copies {
            return Ok(None);
        }
        let own = self.sums()?;
        let table = self.executor.gather(&own)?;
        let mut known: BTreeMap<(usize, Option<usize>), (usize, u32)> = BTreeMap::new();
        let rows = table.into_iter().enumerate();
        for (other, (stage, place, sum)) in rows.flat_map(|(rank, row)| row.into_iter().map(move |sum| (rank, sum))) {
            let (first, first_sum) = *known.entry((stage, place)).or_insert((other, sum));
            if first_sum != sum {
                return Ok(Some(Drifted { stage, first, other }));
            }
        }
        Ok(None)
    }

    /// The checksums of this rank's stages that are not sharded.
    fn sums(&mut self) -> Result<Vec<Sum>, ExecuteError> {
        let (rank, groups) = (self.number(), self.executor.groups().clone());
        let stages: Vec<StageId> = self.executor.stages().keys().copied().collect();
        let mut sums = Vec::new();
        for stage in stages {
            if self.executor.group.is_sharded(stage) {
                continue;
            }
            let (holders, mut of_stage) = (groups.of(stage), BTreeMap::<Option<usize>, crc32fast::Hasher>::new());
            let held = &self.executor.stages()[&stage];
            let weights = held.weights().into_iter().filter(|(id, _)| !holders.is_cut_among_replicas(*id));
            let weights = weights.map(|(id, weight)| (holders.piece_of(id), weight));
            // Buffers of members, and of replicas over which weights are cut, may differ.
            let (member, members) = (groups.members.member(), groups.members.size());
            let replica = if held.options().spread { groups.replicas.member() } else { 0 };
            let place = Some(member + members * (1 + replica));
            let buffers = held.buffers().into_iter().map(|(_, buffer)| (place, buffer));
            for (place, value) in weights.chain(buffers) {
                let data = value.to_data().map_err(|message| ExecuteError::Device { rank, message })?;
                of_stage.entry(place).or_default().update(data.as_bytes());
            }
            sums.extend(of_stage.into_iter().map(|(place, sum)| (stage.index(), place, sum.finalize())));
        }
        Ok(sums)
    }
}
