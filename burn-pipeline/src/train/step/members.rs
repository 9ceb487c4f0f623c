//! Compares, once, the gradients of weights that are whole on all members of a tensor-parallel group.
//!
//! Guarantees: if a first step would give such a weight different values on the members of a group, the step ends on
//! all ranks with an error that names the weight, and nothing was stepped.
//!
//! Losses show most differences sooner or later, but not a weight of whose gradient each member computes only a part:
//! the losses stay equal, but are those of another model. Gradients are compared bit for bit, by a hash of their
//! values.

use super::rank::Rank;
use crate::execute::ExecuteError;
use crate::payload::AnyTensor;
use std::collections::HashSet;

/// A weight's stage and name, and the hash of its gradient if it has one.
type Row = (usize, String, Option<u64>);

impl Rank {
    /// Compares the gradients of whole weights in the first step. All ranks call it.
    ///
    /// # Errors
    /// Returns [`ExecuteError::MembersDrift`] if they differ, the same on all ranks. Also fails if another rank failed,
    /// or a device reports an error.
    pub(super) fn compare_members_once(&mut self) -> Result<(), ExecuteError> {
        let (rank, grid) = (self.number(), self.executor.grid());
        // All ranks take part if any group has several members.
        if grid.largest_group() < 2 || std::mem::replace(&mut self.members_compared, true) {
            return Ok(());
        }
        let own = self.whole_gradients().map_err(|message| ExecuteError::Device { rank, message })?;
        let table: Vec<Vec<Row>> = self.executor.gather(&own)?;
        for (other, rows) in table.iter().enumerate() {
            let first = grid.group_of(other).start;
            let one = &table[first];
            // Also if one of them has more weights than the other.
            let odd = (0..one.len().max(rows.len())).find(|&place| one.get(place) != rows.get(place));
            if let Some(row) = odd.and_then(|place| one.get(place).or(rows.get(place))) {
                let (stage, parameter) = (row.0, row.1.clone());
                return Err(ExecuteError::MembersDrift { rank, first, other, stage, parameter });
            }
        }
        Ok(())
    }

    fn whole_gradients(&mut self) -> Result<Vec<Row>, String> {
        let members = self.executor.groups().members.clone();
        let mut rows = Vec::new();
        for (stage, held) in self.executor.stages().iter_mut() {
            let mut seen = HashSet::new();
            let parameters = held.named_parameters().into_iter();
            for parameter in parameters.filter(|p| members.axis_of(p.id).is_none() && seen.insert(p.id)) {
                let hash = held.gradients().get(parameter.id).map(AnyTensor::digest).transpose()?;
                rows.push((stage.index(), parameter.name, hash));
            }
        }
        Ok(rows)
    }
}
