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
//! [`ReplicaGroup::advance`] takes each reduction as far as the arrived messages allow. The executor calls it
//! between the actions of a row, and while it waits for a message of the plan.

use super::inbox::ReplicaInbox;
use super::parameters::{Tensors, add, join_lists};
use super::pieces::{cut, pack};
use super::replica_group::{Reduction, ReplicaGroup, Stages};
use crate::link::{Header, Link, LinkError, Message, MessageKind};
use crate::plan::StageId;
use crate::stage::ErasedStage;
use std::time::Instant;

/// The header of a replica's piece of a stage's gradients, or (`summed`) of its piece of their sum.
fn header(stage: StageId, from: usize, summed: bool) -> Header {
    let kind = if summed { MessageKind::ReplicaSum { from } } else { MessageKind::ReplicaGradient { from } };
    Header::of_stage(kind, stage)
}

impl ReplicaGroup {
    /// Takes a stage's gradients from it and sends the other replicas their pieces.
    pub(crate) fn start_reduction(
        &mut self,
        link: &mut dyn Link,
        stage: StageId,
        held: &mut dyn ErasedStage,
        deadline: Instant,
    ) -> Result<(), LinkError> {
        let replicas = self.grid.replicas();
        let mut pieces: Vec<Tensors> = vec![Vec::new(); replicas];
        for parameter in self.parameters_of(stage) {
            let cut = held.gradients().remove(parameter.id).map(|gradient| cut(gradient, replicas));
            match cut {
                None => pieces.iter_mut().for_each(|list| list.push(None)),
                Some(cut) => pieces.iter_mut().zip(cut).for_each(|(list, piece)| list.push(Some(piece))),
            }
        }
        let own = self.grid.replica();
        for (replica, rank) in self.others() {
            let payload = pack(std::mem::take(&mut pieces[replica]));
            link.send(rank, Message { header: header(stage, own, false), payload }, deadline)?;
            self.inbox.lock().post(rank, header(stage, replica, false));
            // Another replica may have all pieces, and send its sum, before this rank has all pieces.
            if !self.is_sharded(stage) {
                self.inbox.lock().allow_early(rank, header(stage, replica, true));
            }
        }
        self.reductions.push(Reduction { stage, own: std::mem::take(&mut pieces[own]), summed: false });
        Ok(())
    }

    /// Returns true if a reduction is started and not finished.
    pub(crate) fn is_reducing(&self) -> bool {
        !self.reductions.is_empty()
    }

    /// The stages whose reductions are started and not finished, in the order of their starts.
    pub(crate) fn reducing(&self) -> Vec<StageId> {
        self.reductions.iter().map(|reduction| reduction.stage).collect()
    }

    /// Advances the started reductions as far as possible without waiting. Returns the stages that are done, and
    /// the ranks that have still to send and from which nothing has arrived.
    pub(crate) fn advance(
        &mut self,
        link: &mut dyn Link,
        stages: &mut Stages,
        deadline: Instant,
    ) -> Result<(Vec<StageId>, Vec<usize>), LinkError> {
        if self.reductions.is_empty() {
            return Ok((Vec::new(), Vec::new()));
        }
        let others = self.others();
        let silent = self.inbox.lock().receive_arrived(link, others.iter().map(|(_, rank)| *rank), deadline)?;
        let here = |inbox: &ReplicaInbox, reduction: &Reduction| {
            let header = |replica| header(reduction.stage, replica, reduction.summed);
            others.iter().all(|&(replica, rank)| inbox.has(rank, header(replica)))
        };
        let mut done = Vec::new();
        for at in 0..self.reductions.len() {
            let complete = here(&self.inbox.lock(), &self.reductions[at]);
            if !self.reductions[at].summed && complete {
                self.sum(link, at, deadline)?;
            }
            let reduction = &self.reductions[at];
            if reduction.summed && (self.is_sharded(reduction.stage) || here(&self.inbox.lock(), reduction)) {
                done.push(reduction.stage);
            }
        }
        done.iter().try_for_each(|&stage| self.finish_reduction(link, stages, stage, deadline))?;
        Ok((done, silent))
    }

    /// Waits for the pieces of all started reductions, adds them, and sends the sums.
    pub(crate) fn sum_all(&mut self, link: &mut dyn Link, deadline: Instant) -> Result<(), LinkError> {
        (0..self.reductions.len()).try_for_each(|at| self.sum(link, at, deadline))
    }

    /// Waits for the end of a stage's reduction, if one was started. The stage then holds the sums.
    pub(crate) fn finish_reduction(
        &mut self,
        link: &mut dyn Link,
        stages: &mut Stages,
        stage: StageId,
        deadline: Instant,
    ) -> Result<(), LinkError> {
        let Some(at) = self.reductions.iter().position(|reduction| reduction.stage == stage) else { return Ok(()) };
        self.sum(link, at, deadline)?;
        let sum = self.reductions.remove(at).own;
        self.reduced.insert(stage);
        if self.is_sharded(stage) {
            self.keep_sums(stage, sum);
            return Ok(());
        }
        let lists = self.receive_lists(link, stage, sum, |replica| header(stage, replica, true), deadline)?;
        let Some(held) = stages.get_mut(&stage) else { return Ok(()) };
        let parameters = self.parameters_of(stage);
        for (parameter, sum) in parameters.iter().zip(join_lists(lists, parameters)) {
            sum.into_iter().for_each(|sum| held.gradients().set(parameter.id, sum));
        }
        Ok(())
    }

    /// Waits for the pieces of one reduction, adds them, and sends the sum.
    fn sum(&mut self, link: &mut dyn Link, at: usize, deadline: Instant) -> Result<(), LinkError> {
        if self.reductions[at].summed {
            return Ok(());
        }
        let (stage, own) = (self.reductions[at].stage, std::mem::take(&mut self.reductions[at].own));
        let lists = self.receive_lists(link, stage, own, |replica| header(stage, replica, false), deadline)?;
        let sum = lists.into_iter().reduce(add).unwrap_or_default();
        let others = if self.is_sharded(stage) { Vec::new() } else { self.others() };
        for (replica, rank) in others {
            let header = |from| header(stage, from, true);
            let message = Message { header: header(self.grid.replica()), payload: pack(sum.clone()) };
            link.send(rank, message, deadline)?;
            self.inbox.lock().post(rank, header(replica));
        }
        self.reductions[at] = Reduction { stage, own: sum, summed: true };
        Ok(())
    }

    /// Adds the sums of a stage's gradient pieces to those of earlier batches.
    fn keep_sums(&mut self, stage: StageId, sum: Tensors) {
        let shard = self.shards.entry(stage).or_default();
        shard.sums = match std::mem::take(&mut shard.sums) {
            sums if sums.is_empty() => sum,
            sums => add(sums, sum),
        };
    }

    /// Reduces the gradients that the plan did not reduce: of sharded stages (after each batch), or of the others
    /// (before a step).
    pub(crate) fn reduce_remaining(
        &mut self,
        link: &mut dyn Link,
        stages: &mut Stages,
        sharded: bool,
        deadline: Instant,
    ) -> Result<(), LinkError> {
        if self.grid.replicas() > 1 {
            let selected: Vec<StageId> =
                stages.keys().copied().filter(|&stage| self.is_sharded(stage) == sharded).collect();
            for &stage in &selected {
                let Some(held) = stages.get_mut(&stage).filter(|_| !self.reduced.contains(&stage)) else { continue };
                self.start_reduction(link, stage, held.as_mut(), deadline)?;
            }
            // All sums are sent before the first is awaited: other replicas wait for them in the same place.
            self.sum_all(link, deadline)?;
            for stage in self.reducing() {
                self.finish_reduction(link, stages, stage, deadline)?;
            }
            self.reduced.retain(|stage| !selected.contains(stage));
        }
        Ok(())
    }
}
