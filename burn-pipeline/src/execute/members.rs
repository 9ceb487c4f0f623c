//! What a rank does with its tensor-parallel group: see [`tensor_parallel`](crate::tensor_parallel).
//!
//! Guarantees: parameters that are not cut start with the same values on all members; a member whose loss differs
//! from the others' ends the step. Replicated tensors must be equal on all members. A difference, such as a layer
//! without its collective or a random draw of one member alone, shows in the loss sooner or later.

use super::error::ExecuteError;
use super::executor::Executor;
use super::losses::LossRow;
use crate::payload::AnyTensor;
use crate::stage::{Accumulation, StageError};

impl Executor {
    /// Gives all members the values of member 0 for parameters that are not cut.
    ///
    /// # Errors
    /// As [`Executor::check_cuts`], or if members hold different parameters. Another rank's failure unwinds.
    pub(crate) fn equalize_members(&mut self) -> Result<(), ExecuteError> {
        self.check_cuts()?;
        if self.groups.members.size() < 2 {
            return Ok(());
        }
        for held in self.stages.values_mut() {
            let equal = |(id, weight)| match self.groups.members.axis_of(id) {
                Some(_) => weight,
                None => self.groups.members.first_values(weight),
            };
            let weights: Vec<AnyTensor> = held.weights().into_iter().map(equal).collect();
            held.set_weights(weights);
        }
        Ok(())
    }

    /// Refuses parameters, cut over a tensor-parallel group, over replicas or over the ranks of the vocabulary, that
    /// cannot be trained as on one device.
    ///
    /// # Errors
    /// Returns [`ExecuteError`] if an optimizer cannot step pieces of parameters, replicas' pieces are to be summed
    /// in the order of microbatches, or a cut parameter was replaced.
    fn check_cuts(&mut self) -> Result<(), ExecuteError> {
        let rank = self.rank();
        let [members, replicas] = [&self.groups.members, &self.groups.replicas];
        let held = self.parameters().collect();
        if let Some(parameter) = [members, replicas].into_iter().find_map(|group| group.cut_beside(&held)) {
            return Err(ExecuteError::CutReplaced { rank, parameter: parameter.to_string() });
        }
        for (&stage, held) in &mut self.stages {
            if let Some(name) = members.adapted_after_cut(&held.named_parameters()) {
                return Err(ExecuteError::AdaptedAfterCut { rank, stage, name });
            }
            let spread = replicas.cuts_any(held.parameters());
            if spread && held.gradients().accumulation == Accumulation::Ordered {
                return Err(ExecuteError::OrderedOverReplicas { rank, stage });
            }
            let device = |error: StageError| ExecuteError::Device { rank, message: error.to_string() };
            let mut parameters = held.parameters().into_iter();
            if parameters.any(|id| self.groups.of(stage).is_cut(id)) && !held.steps_by_element().map_err(device)? {
                return Err(ExecuteError::NotByElement { rank, stage });
            }
        }
        Ok(())
    }

    /// The losses of the first member of each group, from those of all ranks.
    ///
    /// # Errors
    /// Returns [`ExecuteError`] if members of a group computed different ones.
    pub(super) fn of_first_members(&self, table: Vec<Vec<LossRow>>) -> Result<Vec<(usize, LossRow)>, ExecuteError> {
        let (rank, grid) = (self.rank(), self.grid());
        let bits = |row: &LossRow| (row.0, row.1, row.2.to_bits(), row.3.to_bits());
        for (other, rows) in table.iter().enumerate() {
            let first = grid.group_of(other).start;
            let pair = table[first].iter().zip(rows).find(|(one, two)| bits(one) != bits(two));
            if let Some(((index, _, loss, ..), (_, _, theirs, ..))) = pair {
                let (index, loss, theirs) = (*index, *loss, *theirs);
                return Err(ExecuteError::MembersDiffer { rank, first, other, index, loss, theirs });
            }
        }
        let of_rank = |(rank, rows): (usize, Vec<LossRow>)| rows.into_iter().map(move |row| (rank, row));
        Ok(table
            .into_iter()
            .enumerate()
            .filter(|(rank, _)| grid.group_of(*rank).start == *rank)
            .flat_map(of_rank)
            .collect())
    }
}
