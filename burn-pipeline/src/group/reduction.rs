//! The reduction of a stage's gradients over its replicas, beside what the row goes on with.
//!
//! Guarantees: nothing here waits but [`Group::sum_all`] and [`Group::finish_reduction`]; sums are added in the order of
//! replicas, whenever their parts come, so they are bit-equal on all of them.
//!
//! 1. *Start*: the stage's gradients leave it, cut into one piece a replica; each replica is sent its piece.
//! 2. *Sum*: once all pieces are here, they are added up, and the sum is sent to all others. Sharded parameters stop
//!    here: the piece of the sum is what a replica keeps.
//! 3. *Join*: once all sums are here, they are put together, and go back to the stage.
//!
//! [`Group::move_on`] goes from one to the next wherever what it takes has come; the executor calls it between
//! the actions of a row, and while it waits for a message of the plan.

use super::exchange::{Group, Tensors};
use super::mail::Mail;
use super::pieces::{cut, join, pack};
use crate::link::{Direction, Header, Link, LinkError, Message};
use crate::plan::StageId;
use crate::stage::{AnyTensor, ErasedStage};
use std::collections::BTreeMap;
use std::time::Instant;

type Stages = BTreeMap<StageId, Box<dyn ErasedStage>>;

/// A reduction under way.
#[derive(Debug)]
pub(super) struct Started {
    stage: StageId,
    /// This replica's own part: its own pieces, then their sums.
    own: Tensors,
    /// Have the sums been made and sent?
    summed: bool,
}

fn header(stage: StageId, from: usize, summed: bool) -> Header {
    Header { stage, microbatch: usize::from(summed), direction: Direction::Gradient { from } }
}

impl Group {
    /// Sends the other replicas their pieces of a stage's gradients, which leave the stage.
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
            self.mail.post(rank, header(stage, replica, false));
            if !self.is_sharded(stage) {
                self.mail.may_come(rank, header(stage, replica, true));
            }
        }
        self.started.push(Started { stage, own: std::mem::take(&mut pieces[own]), summed: false });
        Ok(())
    }

    /// Is some reduction under way?
    pub(crate) fn is_reducing(&self) -> bool {
        !self.started.is_empty()
    }

    /// Stages whose reductions are under way, in the order of their starts.
    pub(crate) fn reducing(&self) -> Vec<StageId> {
        self.started.iter().map(|started| started.stage).collect()
    }

    /// Goes on with reductions as far as it goes without waiting. Gives the stages that are done, and the ranks from which
    /// more is to come and nothing is there.
    pub(crate) fn move_on(
        &mut self,
        link: &mut dyn Link,
        stages: &mut Stages,
        deadline: Instant,
    ) -> Result<(Vec<StageId>, Vec<usize>), LinkError> {
        if self.started.is_empty() {
            return Ok((Vec::new(), Vec::new()));
        }
        let others = self.others();
        let silent = self.mail.collect(link, others.iter().map(|(_, rank)| *rank), deadline)?;
        let here = |mail: &Mail, started: &Started| {
            let header = |replica| header(started.stage, replica, started.summed);
            others.iter().all(|&(replica, rank)| mail.is_here(rank, header(replica)))
        };
        let mut done = Vec::new();
        for at in 0..self.started.len() {
            if !self.started[at].summed && here(&self.mail, &self.started[at]) {
                self.sum(link, at, deadline)?;
            }
            let started = &self.started[at];
            if started.summed && (self.is_sharded(started.stage) || here(&self.mail, started)) {
                done.push(started.stage);
            }
        }
        done.iter().try_for_each(|&stage| self.finish_reduction(link, stages, stage, deadline))?;
        Ok((done, silent))
    }

    /// Waits for what all started reductions lack for their sums, and sends these.
    pub(crate) fn sum_all(&mut self, link: &mut dyn Link, deadline: Instant) -> Result<(), LinkError> {
        (0..self.started.len()).try_for_each(|at| self.sum(link, at, deadline))
    }

    /// Waits for the end of a stage's reduction, if there is one: the stage then holds the sums.
    pub(crate) fn finish_reduction(
        &mut self,
        link: &mut dyn Link,
        stages: &mut Stages,
        stage: StageId,
        deadline: Instant,
    ) -> Result<(), LinkError> {
        let Some(at) = self.started.iter().position(|started| started.stage == stage) else { return Ok(()) };
        self.sum(link, at, deadline)?;
        let sum = self.started.remove(at).own;
        self.reduced.insert(stage);
        if self.is_sharded(stage) {
            self.keep_sums(stage, sum);
            return Ok(());
        }
        let mut all = self.received(link, stage, sum, true, deadline)?;
        let Some(held) = stages.get_mut(&stage) else { return Ok(()) };
        for (place, parameter) in self.parameters_of(stage).iter().enumerate() {
            let pieces: Option<Vec<AnyTensor>> = all.iter_mut().map(|list| list[place].take()).collect();
            let sum = pieces.map(|pieces| join(pieces, &parameter.shape));
            sum.into_iter().for_each(|sum| held.gradients().set(parameter.id, sum));
        }
        Ok(())
    }

    /// Waits for the pieces of one reduction, adds them up, and sends the sums.
    fn sum(&mut self, link: &mut dyn Link, at: usize, deadline: Instant) -> Result<(), LinkError> {
        if self.started[at].summed {
            return Ok(());
        }
        let (stage, own) = (self.started[at].stage, std::mem::take(&mut self.started[at].own));
        let lists = self.received(link, stage, own, false, deadline)?;
        let sum = lists.into_iter().reduce(Self::added).unwrap_or_default();
        let others = if self.is_sharded(stage) { Vec::new() } else { self.others() };
        for (replica, rank) in others {
            let header = |from| header(stage, from, true);
            let message = Message { header: header(self.grid.replica()), payload: pack(sum.clone()) };
            link.send(rank, message, deadline)?;
            self.mail.post(rank, header(replica));
        }
        self.started[at] = Started { stage, own: sum, summed: true };
        Ok(())
    }

    /// The sum of two lists, place by place.
    pub(super) fn added(sum: Tensors, list: Tensors) -> Tensors {
        let add = |pair| match pair {
            (Some(a), Some(b)) => Some(AnyTensor::plus(a, b)),
            (one, other) => one.or(other),
        };
        sum.into_iter().zip(list).map(add).collect()
    }

    /// The lists of all replicas, in their order, this one's own among them.
    fn received(
        &mut self,
        link: &mut dyn Link,
        stage: StageId,
        own: Tensors,
        summed: bool,
        deadline: Instant,
    ) -> Result<Vec<Tensors>, LinkError> {
        self.lists(link, stage, own, |replica| header(stage, replica, summed), deadline)
    }

    /// Reduces what the plan did not, in the order of stages: of sharded stages after each batch, of others before a
    /// step.
    pub(crate) fn reduce_remaining(
        &mut self,
        link: &mut dyn Link,
        stages: &mut Stages,
        sharded: bool,
        deadline: Instant,
    ) -> Result<(), LinkError> {
        if self.grid.replicas() > 1 {
            let meant: Vec<StageId> =
                stages.keys().copied().filter(|&stage| self.is_sharded(stage) == sharded).collect();
            for &stage in &meant {
                let Some(held) = stages.get_mut(&stage).filter(|_| !self.reduced.contains(&stage)) else { continue };
                self.start_reduction(link, stage, held.as_mut(), deadline)?;
            }
            self.sum_all(link, deadline)?;
            for stage in self.reducing() {
                self.finish_reduction(link, stages, stage, deadline)?;
            }
            self.reduced.retain(|stage| !meant.contains(stage));
        }
        Ok(())
    }
}
