//! The reduction of a stage's gradients over its replicas, while the row continues.
//!
//! Guarantees: only [`ReplicaGroup::sum_all`] and [`ReplicaGroup::finish_reduction`] wait; pieces are added in the
//! order of replicas, in whatever order they arrive, so the sums are bitwise equal on all replicas.
//!
//! 1. *Start*: the stage's gradients are taken from it and cut into one piece per replica. Each replica is sent its
//!    piece.
//! 2. *Sum*: when the pieces of all replicas have arrived, they are added, and the sum is sent to all others.
//!    Sharded parameters stop here: the replica keeps the piece of the sum.
//! 3. *Join*: when the sums of all replicas have arrived, they are joined, and the stage gets them as its
//!    gradients.
//!
//! If a [`Precision`](crate::stage::Precision) reduces in half, all that is sent has the type of the rounded copies:
//! gradients before they are cut, and sums, which are made in f32. Sharded sums are rounded too, so that both ways have
//! the same bits.
//!
//! [`ReplicaGroup::advance`] takes each reduction as far as the arrived messages allow. The executor calls it
//! between the actions of a row, and while it waits for a message of the plan.

use super::parameters::join_lists;
use super::pieces::cut;
use super::replica_group::{Reduction, ReplicaGroup, Stages};
use crate::link::{Header, LinkError, MessageKind};
use crate::ranks::{TensorList, sum};
use burn_pipeline_plan::plan::StageId;

/// The header of a replica's piece of a stage's gradients, or (`summed`) of its piece of their sum.
fn header(stage: StageId, summed: bool) -> Header {
    Header::of_stage(if summed { MessageKind::ReplicaSum } else { MessageKind::ReplicaGradient }, stage)
}

impl ReplicaGroup {
    /// Takes a stage's gradients from it and sends the other replicas their pieces.
    pub(crate) fn start_reduction(&mut self, stages: &mut Stages, stage: StageId) -> Result<(), LinkError> {
        let Some(held) = stages.get_mut(&stage) else { return Ok(()) };
        let replicas = self.set.size();
        let mut pieces: Vec<TensorList> = vec![Vec::new(); replicas];
        for parameter in self.parameters_of(stage) {
            let gradient = held.gradients().remove(parameter.id);
            match gradient.map(|gradient| cut(gradient.cast(self.gradients.dtype(parameter)), replicas)) {
                None => pieces.iter_mut().for_each(|list| list.push(None)),
                Some(cut) => pieces.iter_mut().zip(cut).for_each(|(list, piece)| list.push(Some(piece))),
            }
        }
        self.set.send_lists(header(stage, false), |replica| std::mem::take(&mut pieces[replica]))?;
        // Another replica may have all pieces, and send its sum, before this rank has all pieces.
        if !self.is_sharded(stage) {
            let early = |(_, rank)| self.set.with_messages(|messages| messages.allow_early(rank, header(stage, true)));
            self.set.others().for_each(early);
        }
        let own = self.set.place();
        self.reductions.push(Reduction { stage, own: std::mem::take(&mut pieces[own]), summed: false });
        Ok(())
    }

    pub(crate) fn is_reducing(&self) -> bool {
        !self.reductions.is_empty()
    }

    /// The stages whose reductions are started and not finished, in the order of their starts.
    pub(crate) fn reducing(&self) -> Vec<StageId> {
        self.reductions.iter().map(|reduction| reduction.stage).collect()
    }

    /// Advances the started reductions as far as possible without waiting. Returns the stages that are done, and
    /// the ranks that have still to send and from which nothing has arrived.
    pub(crate) fn advance(&mut self, stages: &mut Stages) -> Result<(Vec<StageId>, Vec<usize>), LinkError> {
        if self.reductions.is_empty() {
            return Ok((Vec::new(), Vec::new()));
        }
        let silent = self.set.receive_arrived()?;
        let mut done = Vec::new();
        for at in 0..self.reductions.len() {
            let Reduction { stage, summed, .. } = self.reductions[at];
            if !summed && self.set.may_overtake() && self.set.has_all(header(stage, false)) {
                self.sum(at)?;
            }
            if self.reductions[at].summed && (self.is_sharded(stage) || self.set.has_all(header(stage, true))) {
                done.push(stage);
            }
        }
        done.iter().try_for_each(|&stage| self.finish_reduction(stages, stage))?;
        Ok((done, silent))
    }

    /// Waits for the pieces of all started reductions, adds them, and sends the sums.
    pub(crate) fn sum_all(&mut self) -> Result<(), LinkError> {
        (0..self.reductions.len()).try_for_each(|at| self.sum(at))
    }

    /// Waits for the end of a stage's reduction, if one was started. The stage then holds the sums.
    pub(crate) fn finish_reduction(&mut self, stages: &mut Stages, stage: StageId) -> Result<(), LinkError> {
        let Some(at) = self.reductions.iter().position(|reduction| reduction.stage == stage) else { return Ok(()) };
        self.sum(at)?;
        let sum = self.reductions.remove(at).own;
        self.reduced.insert(stage);
        if self.is_sharded(stage) {
            return self.keep_sums(stage, sum);
        }
        let lists = self.set.receive_lists(header(stage, true), sum, self.fitting(stage, self.gradients))?;
        let Some(held) = stages.get_mut(&stage) else { return Ok(()) };
        let parameters = self.parameters_of(stage);
        for (parameter, sum) in parameters.iter().zip(join_lists(lists, parameters)) {
            sum.into_iter().for_each(|sum| held.gradients().set(parameter.id, sum.cast(parameter.dtype)));
        }
        Ok(())
    }

    /// Waits for the pieces of one reduction, adds them, and sends the sum.
    fn sum(&mut self, at: usize) -> Result<(), LinkError> {
        let Reduction { stage, ref mut own, summed } = self.reductions[at];
        if summed {
            return Ok(());
        }
        let own = std::mem::take(own);
        let own = self.set.sum_lists(header(stage, false), own, self.fitting(stage, self.gradients))?;
        if !self.is_sharded(stage) {
            self.set.send_list(header(stage, true), own.clone())?;
        }
        self.reductions[at] = Reduction { stage, own, summed: true };
        Ok(())
    }

    /// Adds the sums of a stage's gradient pieces to those of earlier batches.
    fn keep_sums(&mut self, stage: StageId, new: TensorList) -> Result<(), LinkError> {
        let new = self.parameters_of(stage).iter().zip(new);
        let new = new.map(|(parameter, sum)| Some(sum?.cast(parameter.dtype))).collect();
        let shard = self.shards.entry(stage).or_default();
        shard.sums = match std::mem::take(&mut shard.sums) {
            sums if sums.is_empty() => new,
            sums => sum(sums, new).map_err(|reason| {
                let rank = self.set.rank();
                LinkError::Lists { rank, peer: rank, reason }
            })?,
        };
        Ok(())
    }

    /// Reduces the gradients that the plan did not reduce: of sharded stages (after each batch), or of the others
    /// (before a step).
    pub(crate) fn reduce_remaining(&mut self, stages: &mut Stages, sharded: bool) -> Result<(), LinkError> {
        if self.set.size() > 1 {
            let selected: Vec<StageId> =
                stages.keys().copied().filter(|&stage| self.is_sharded(stage) == sharded).collect();
            for &stage in &selected {
                if !self.reduced.contains(&stage) {
                    self.start_reduction(stages, stage)?;
                }
            }
            // All sums are sent before the first is awaited: other replicas wait for them in the same place.
            self.sum_all()?;
            for stage in self.reducing() {
                self.finish_reduction(stages, stage)?;
            }
            self.reduced.retain(|stage| !selected.contains(stage));
        }
        Ok(())
    }
}
