//! Sharded parameters: of each trained parameter of a stage, every replica keeps one piece, and the piece's gradient and
//! optimizer state; the whole is there only while the stage is used.
//!
//! Guarantees: gathered parameters are the pieces, bit for bit; a piece's gradient is the sum over all replicas, in their
//! order; after a row nothing is left gathered.
//!
//! 1. *Released*, the module's parameters are the pieces themselves: of the parameter's rank, with all elements along the
//!    last dimension. So the module's own optimizer steps them under their ids, paths and groups, and its state is
//!    as large as they are. That is right for optimizers that step every element by itself (SGD, Adam, AdamW, RMSprop,
//!    Adagrad, Lion, Adan): others (norms or factors over a parameter: LAMB, Adafactor, Muon; clipping a parameter by
//!    its norm) are tried on a small piece of each parameter at the start, and refused
//!    ([`ErasedStage::steps_by_element`]).
//! 2. *Gathered* ([`Group::start_gather`], [`Group::finish_gather`]): the module has whole parameters again; the own
//!    pieces are kept beside them.
//! 3. Autodiff's graphs hold the parameters of a microbatch until its backward. A stage is therefore released only when
//!    nothing in flight refers to its parameters ([`ErasedStage::pins_weights`]); a `RESHARD` before that leaves it
//!    gathered, alike on all replicas. Stages that are recomputed refer to nothing. Captured programs take parameters
//!    as inputs: they let go of them here ([`ErasedStage::unload_weights`]), and are given the gathered ones again.
//! 4. Buffers and frozen parameters stay whole, on every replica.

use super::exchange::{Group, Parameter, Tensors};
use super::pieces::{cut, join, pack};
use crate::link::{Direction, Header, Link, LinkError, Message};
use crate::plan::StageId;
use crate::stage::{AnyTensor, ErasedStage};
use burn::module::ParamId;
use burn::tensor::Shape;
use std::collections::HashMap;
use std::time::Instant;

/// What a replica keeps of a stage.
#[derive(Debug, Default)]
pub(crate) struct Shard {
    state: State,
    /// Sums of the gradients' pieces since the last step.
    pub(super) sums: Tensors,
}

#[derive(Debug, Default)]
enum State {
    /// The module has the pieces.
    #[default]
    Released,
    /// The others have been sent this replica's pieces.
    Coming(Vec<AnyTensor>),
    /// The module has whole parameters; these are the own pieces.
    Gathered(Vec<AnyTensor>),
}

/// What a gather is of; the message's number.
#[derive(Clone, Copy)]
enum Of {
    Parameters = 0,
    Others = 1,
}

fn header(stage: StageId, from: usize, of: Of) -> Header {
    Header { stage, microbatch: of as usize, direction: Direction::Shard { from } }
}

/// A piece in its parameter's rank.
pub(super) fn ranked(piece: AnyTensor, parameter: &Parameter) -> AnyTensor {
    let mut shape = vec![1; parameter.shape.len().max(1)];
    shape.last_mut().into_iter().for_each(|last| *last = piece.shape().num_elements());
    piece.reshape(Shape::from(shape))
}

fn flat(piece: AnyTensor) -> AnyTensor {
    let elements = piece.shape().num_elements();
    piece.reshape(Shape::new([elements]))
}

/// Gives the module these values for these parameters; others stay.
fn put(held: &mut dyn ErasedStage, parameters: &[Parameter], values: Vec<AnyTensor>) {
    let values: HashMap<ParamId, AnyTensor> = parameters.iter().map(|p| p.id).zip(values).collect();
    let weights = held.weights().into_iter();
    let weights = weights.map(|(id, weight)| values.get(&id).cloned().unwrap_or(weight)).collect();
    held.set_weights(weights);
}

impl Group {
    /// Are the parameters of a stage sharded?
    pub(crate) fn is_sharded(&self, stage: StageId) -> bool {
        self.shards.contains_key(&stage)
    }

    /// Are those of any stage?
    pub(crate) fn any_sharded(&self) -> bool {
        !self.shards.is_empty()
    }

    /// Cuts whole parameters down to this replica's pieces: at the start, and when others were loaded.
    ///
    /// # Errors
    /// What a device reports.
    pub(crate) fn shard(&mut self, stage: StageId, held: &mut dyn ErasedStage) -> Result<(), String> {
        let (own, replicas) = (self.grid.replica(), self.grid.replicas());
        let parameters = self.parameters_of(stage);
        let weights: HashMap<ParamId, AnyTensor> = held.weights().into_iter().collect();
        let piece = |p: &Parameter| {
            let weight = weights.get(&p.id).cloned().ok_or("a parameter is gone")?;
            let device = weight.device();
            let piece = cut(weight, replicas).swap_remove(own);
            // By way of the host: a view would keep the whole storage.
            Ok(ranked(AnyTensor::from_data_exact(piece.into_data()?, &device), p))
        };
        let pieces = parameters.iter().map(piece).collect::<Result<Vec<_>, String>>()?;
        put(held, parameters, pieces);
        self.shards.insert(stage, Shard::default());
        Ok(())
    }

    /// Sends the other replicas this one's pieces of a stage's parameters, if it is not gathered.
    pub(crate) fn start_gather(
        &mut self,
        link: &mut dyn Link,
        stage: StageId,
        held: &dyn ErasedStage,
        deadline: Instant,
    ) -> Result<(), LinkError> {
        if !matches!(self.shards.get(&stage).map(|shard| &shard.state), Some(State::Released)) {
            return Ok(());
        }
        let weights: HashMap<ParamId, AnyTensor> = held.weights().into_iter().collect();
        let piece = |p: &Parameter| weights.get(&p.id).cloned().map(flat);
        let own: Vec<AnyTensor> = self.parameters_of(stage).iter().filter_map(piece).collect();
        self.send_pieces(link, stage, own.iter().cloned().map(Some).collect(), Of::Parameters, deadline)?;
        self.shards.entry(stage).or_default().state = State::Coming(own);
        Ok(())
    }

    /// Waits for the other replicas' pieces of a stage that is being gathered.
    pub(crate) fn finish_gather(
        &mut self,
        link: &mut dyn Link,
        stage: StageId,
        held: &mut dyn ErasedStage,
        deadline: Instant,
    ) -> Result<(), LinkError> {
        let Some(shard) = self.shards.get_mut(&stage) else { return Ok(()) };
        let own = match std::mem::take(&mut shard.state) {
            State::Coming(own) => own,
            other => {
                shard.state = other;
                return Ok(());
            }
        };
        let pieces = own.iter().cloned().map(Some).collect();
        let whole = self.await_pieces(link, stage, pieces, Of::Parameters, deadline)?;
        put(held, self.parameters_of(stage), whole.into_iter().flatten().collect());
        self.shards.entry(stage).or_default().state = State::Gathered(own);
        Ok(())
    }

    /// Is a stage's task to wait for parameters?
    pub(crate) fn is_coming(&self, stage: StageId) -> bool {
        matches!(self.shards.get(&stage).map(|shard| &shard.state), Some(State::Coming(_)))
    }

    /// Lets go of all but this replica's pieces, unless something in flight refers to the whole.
    pub(crate) fn release(&mut self, stage: StageId, held: &mut dyn ErasedStage) {
        let Some(shard) = self.shards.get_mut(&stage) else { return };
        if held.pins_weights() {
            return;
        }
        let own = match std::mem::take(&mut shard.state) {
            State::Gathered(own) => own,
            other => {
                shard.state = other;
                return;
            }
        };
        held.unload_weights();
        let parameters = self.parameters_of(stage);
        let own = own.into_iter().zip(parameters).map(|(piece, parameter)| ranked(piece, parameter)).collect();
        put(held, parameters, own);
    }

    /// Adds the sums of a stage's gradient pieces to those of earlier batches.
    pub(super) fn keep_sums(&mut self, stage: StageId, sum: Tensors) {
        let shard = self.shards.entry(stage).or_default();
        shard.sums = match std::mem::take(&mut shard.sums) {
            sums if sums.is_empty() => sum,
            sums => Self::added(sums, sum),
        };
    }

    /// Hands the sums to the stages, in the form of the pieces that they are the gradients of.
    pub(super) fn hand_out_sums(&mut self, stage: StageId, held: &mut dyn ErasedStage) {
        let sums = self.shards.get_mut(&stage).map(|shard| std::mem::take(&mut shard.sums)).unwrap_or_default();
        for (parameter, sum) in self.parameters_of(stage).iter().zip(sums) {
            sum.into_iter().for_each(|sum| held.gradients().set(parameter.id, ranked(sum, parameter)));
        }
    }

    /// The whole tensors of which every replica has a piece, one a parameter: gradients, say. All replicas call it.
    pub(crate) fn whole(
        &mut self,
        link: &mut dyn Link,
        stage: StageId,
        own: Tensors,
        deadline: Instant,
    ) -> Result<Tensors, LinkError> {
        let own: Tensors = own.into_iter().map(|piece| piece.map(flat)).collect();
        self.send_pieces(link, stage, own.clone(), Of::Others, deadline)?;
        self.await_pieces(link, stage, own, Of::Others, deadline)
    }

    /// With ordered accumulation: gives the first replica's stage the whole sums of earlier batches, so that the next batch
    /// is added to them in order. All replicas call it.
    pub(crate) fn gather_sums_on_first(
        &mut self,
        link: &mut dyn Link,
        stage: StageId,
        held: &mut dyn ErasedStage,
        deadline: Instant,
    ) -> Result<(), LinkError> {
        let sums = self.shards.get_mut(&stage).map(|shard| std::mem::take(&mut shard.sums)).unwrap_or_default();
        // All replicas have sums, or none of them has.
        if sums.is_empty() {
            return Ok(());
        }
        let whole = self.whole(link, stage, sums, deadline)?;
        if self.grid.replica() == 0 {
            for (parameter, sum) in self.parameters_of(stage).iter().zip(whole) {
                sum.into_iter().for_each(|sum| held.gradients().set(parameter.id, sum));
            }
        }
        Ok(())
    }

    /// Replaces the pieces of gradients that a stage holds by whole gradients. All replicas call it.
    pub(crate) fn gather_gradients(
        &mut self,
        link: &mut dyn Link,
        stage: StageId,
        held: &mut dyn ErasedStage,
        deadline: Instant,
    ) -> Result<(), LinkError> {
        let ids: Vec<ParamId> = self.parameters_of(stage).iter().map(|p| p.id).collect();
        let own = ids.iter().map(|&id| held.gradients().remove(id)).collect();
        let whole = self.whole(link, stage, own, deadline)?;
        for (id, gradient) in ids.into_iter().zip(whole) {
            gradient.into_iter().for_each(|gradient| held.gradients().set(id, gradient));
        }
        Ok(())
    }

    fn send_pieces(
        &mut self,
        link: &mut dyn Link,
        stage: StageId,
        own: Tensors,
        of: Of,
        deadline: Instant,
    ) -> Result<(), LinkError> {
        let payload = pack(own);
        for (replica, rank) in self.others() {
            let message = Message { header: header(stage, self.grid.replica(), of), payload: payload.clone() };
            link.send(rank, message, deadline)?;
            self.mail.post(rank, header(stage, replica, of));
        }
        Ok(())
    }

    fn await_pieces(
        &mut self,
        link: &mut dyn Link,
        stage: StageId,
        own: Tensors,
        of: Of,
        deadline: Instant,
    ) -> Result<Tensors, LinkError> {
        let mut lists = self.lists(link, stage, own, |replica| header(stage, replica, of), deadline)?;
        let whole = |(place, parameter): (usize, &Parameter)| {
            let pieces: Option<Vec<AnyTensor>> = lists.iter_mut().map(|list| list[place].take()).collect();
            pieces.map(|pieces| join(pieces, &parameter.shape))
        };
        Ok(self.parameters_of(stage).iter().enumerate().map(whole).collect())
    }

    /// Forgets what is under way, of shards.
    pub(super) fn forget_shards(&mut self) {
        self.shards.values_mut().for_each(|shard| shard.sums.clear());
    }
}
