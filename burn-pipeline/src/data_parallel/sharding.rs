//! Sharded parameters: every replica keeps one piece of each trained parameter of a stage, with that piece's
//! gradient and optimizer state. The whole parameters exist only while the stage is used.
//!
//! Guarantees: gathered parameters are the pieces, bit for bit; a piece's gradient is the sum over all replicas, in
//! their order; after a row nothing stays gathered.
//!
//! 1. *Released*: the module's parameters are the pieces, with the parameter's number of dimensions and all
//!    elements along the last one. So the module's own optimizer steps them under their ids, paths and groups, and
//!    its state has the size of the pieces. This is correct for optimizers that step each element by itself (SGD,
//!    Adam, AdamW, RMSprop, Adagrad, Lion, Adan). Others use norms or factors of a parameter (LAMB, Adafactor,
//!    Muon, or clipping a parameter by its norm). A trial on a small piece of each parameter finds these at the
//!    start, and they are refused ([`ErasedStage::steps_by_element`]).
//! 2. *Gathered* ([`ReplicaGroup::start_gather`], [`ReplicaGroup::finish_gather`]): the module has whole parameters
//!    again, and this replica's pieces are kept separately.
//! 3. An autodiff graph holds the parameters of a microbatch until its backward. So a stage is released only when
//!    no microbatch in flight refers to its parameters (`EngineState::pins_weights`). A `RESHARD` before that
//!    leaves the stage gathered, on all replicas alike. Recomputed stages refer to no parameters. Captured programs
//!    take parameters as inputs: they drop them here (`EngineState::unload_weights`) and get the gathered ones
//!    later.
//! 4. With a [`Precision`](crate::stage::Precision), the pieces are of the masters, and what is gathered for a row is
//!    of their rounded copies. Masters are gathered whole to be read or replaced ([`Values`]).
//! 5. Buffers and frozen parameters stay whole on every replica.

use super::parameters::{Parameter, Values, join_lists};
use super::pieces::cut;
use super::replica_group::{ReplicaGroup, Shard, ShardState, Stages};
use crate::link::{Header, LinkError, MessageKind};
use crate::payload::AnyTensor;
use crate::ranks::TensorList;
use crate::stage::ErasedStage;
use burn::module::ParamId;
use burn::tensor::Shape;
use burn_pipeline_plan::plan::StageId;
use std::collections::HashMap;

/// The header of a replica's pieces of a stage's parameters.
fn of_parameters(stage: StageId) -> Header {
    Header::of_stage(MessageKind::ParameterShard, stage)
}

/// A piece with one dimension.
fn flat(piece: AnyTensor) -> AnyTensor {
    let elements = piece.shape().num_elements();
    piece.reshape(Shape::new([elements]))
}

impl ReplicaGroup {
    /// Cuts whole parameters to this replica's pieces: at the start, and after other weights were loaded.
    ///
    /// # Errors
    /// Returns the error of the device.
    pub(crate) fn shard(&mut self, stage: StageId, held: &mut dyn ErasedStage) -> Result<(), String> {
        let (own, replicas) = (self.set.place(), self.set.size());
        let parameters = self.parameters_of(stage);
        let weights: HashMap<ParamId, AnyTensor> = held.weights().into_iter().collect();
        let piece = |p: &Parameter| {
            let weight = weights.get(&p.id).cloned().ok_or("a parameter is gone")?;
            let device = weight.device();
            let piece = cut(weight, replicas).swap_remove(own);
            // Copied through the host: a view would keep the storage of the whole parameter.
            Ok(p.in_rank(AnyTensor::from_data(piece.into_data()?, &device)))
        };
        let pieces = parameters.iter().map(piece).collect::<Result<Vec<_>, String>>()?;
        Values::Stepped.set(held, parameters, pieces);
        self.shards.insert(stage, Shard::default());
        Ok(())
    }

    /// Sends the other replicas this one's pieces of a stage's parameters, if the stage is released.
    pub(crate) fn start_gather(&mut self, stages: &Stages, stage: StageId, values: Values) -> Result<(), LinkError> {
        let Some(held) = stages.get(&stage) else { return Ok(()) };
        if !matches!(self.shards.get(&stage).map(|shard| &shard.state), Some(ShardState::Released)) {
            return Ok(());
        }
        let weights: HashMap<ParamId, AnyTensor> = values.of(held.as_ref()).into_iter().collect();
        let piece = |p: &Parameter| weights.get(&p.id).cloned().map(flat);
        let own: TensorList = self.parameters_of(stage).iter().map(piece).collect();
        self.set.send_list(of_parameters(stage), own.clone())?;
        self.shards.entry(stage).or_default().state = ShardState::Gathering(values, own);
        Ok(())
    }

    /// Waits for the other replicas' pieces of a stage that is being gathered, and gives the module the whole
    /// parameters.
    pub(crate) fn finish_gather(&mut self, stages: &mut Stages, stage: StageId) -> Result<(), LinkError> {
        let Some(held) = stages.get_mut(&stage).filter(|_| self.is_gathering(stage)) else { return Ok(()) };
        let state = &mut self.shards.entry(stage).or_default().state;
        let ShardState::Gathering(values, own) = std::mem::take(state) else { return Ok(()) };
        let whole = self.joined(stage, of_parameters(stage), own.clone(), values)?;
        values.set(held.as_mut(), self.parameters_of(stage), whole.into_iter().flatten().collect());
        self.shards.entry(stage).or_default().state = ShardState::Gathered(values, own);
        Ok(())
    }

    /// Gathers the sharded parameters of all stages.
    pub(crate) fn gather_all(&mut self, stages: &mut Stages, values: Values) -> Result<(), LinkError> {
        // All pieces are sent before the first is awaited, so the stages' transfers overlap.
        self.sharded().into_iter().try_for_each(|stage| self.start_gather(stages, stage, values))?;
        self.finish_gathers(stages)
    }

    /// Waits for all parameters that are being gathered.
    pub(crate) fn finish_gathers(&mut self, stages: &mut Stages) -> Result<(), LinkError> {
        self.sharded().into_iter().try_for_each(|stage| self.finish_gather(stages, stage))
    }

    fn sharded(&self) -> Vec<StageId> {
        self.shards.keys().copied().collect()
    }

    pub(crate) fn is_gathering(&self, stage: StageId) -> bool {
        matches!(self.shards.get(&stage).map(|shard| &shard.state), Some(ShardState::Gathering(..)))
    }

    /// The first sharded stage that holds, or will hold, more than this replica's pieces.
    pub(crate) fn first_gathered(&self) -> Option<StageId> {
        let mut shards = self.shards.iter();
        shards.find(|(_, shard)| !matches!(shard.state, ShardState::Released)).map(|(&stage, _)| stage)
    }

    /// Drops all but this replica's pieces, unless a microbatch in flight refers to the whole parameters.
    pub(crate) fn release(&mut self, stage: StageId, held: &mut dyn ErasedStage) {
        let Some(Shard { state, .. }) = self.shards.get_mut(&stage) else { return };
        if held.engine().pins_weights() || !matches!(state, ShardState::Gathered(..)) {
            return;
        }
        let ShardState::Gathered(values, own) = std::mem::take(state) else { return };
        held.engine_mut().unload_weights();
        let parameters = self.parameters_of(stage);
        let own = own.into_iter().zip(parameters).filter_map(|(piece, parameter)| Some(parameter.in_rank(piece?)));
        values.set(held, parameters, own.collect());
    }

    pub(crate) fn release_all(&mut self, stages: &mut Stages) {
        stages.iter_mut().for_each(|(&stage, held)| self.release(stage, held.as_mut()));
    }

    /// Gives sharded stages the sums of their gradients, in the shapes of the pieces.
    pub(crate) fn set_shard_gradients(&mut self, stages: &mut Stages) {
        for (&stage, held) in stages {
            let sums = self.take_sums(stage);
            for (parameter, sum) in self.parameters_of(stage).iter().zip(sums) {
                sum.into_iter().for_each(|sum| held.gradients().set(parameter.id, parameter.in_rank(sum)));
            }
        }
    }

    fn take_sums(&mut self, stage: StageId) -> TensorList {
        self.shards.get_mut(&stage).map(|shard| std::mem::take(&mut shard.sums)).unwrap_or_default()
    }

    /// Gathers whole tensors, one per parameter (such as gradients), of which every replica has a piece. All
    /// replicas call it.
    pub(super) fn gather_pieces(&mut self, stage: StageId, own: TensorList) -> Result<TensorList, LinkError> {
        let header = Header::of_stage(MessageKind::TensorShard, stage);
        let own: TensorList = own.into_iter().map(|piece| piece.map(flat)).collect();
        self.set.send_list(header, own.clone())?;
        self.joined(stage, header, own, Values::Stepped)
    }

    /// Waits for the other replicas' pieces, and joins them.
    fn joined(&self, stage: StageId, header: Header, own: TensorList, values: Values) -> Result<TensorList, LinkError> {
        let lists = self.set.receive_lists(header, own, self.fitting(stage, values))?;
        Ok(join_lists(lists, self.parameters_of(stage)))
    }

    /// With ordered accumulation: gives replica 0's stages the whole sums of earlier batches, so that the next batch
    /// is added to them in order. All replicas call it.
    pub(crate) fn gather_sums_on_first(&mut self, stages: &mut Stages) -> Result<(), LinkError> {
        for (&stage, held) in stages {
            let sums = self.take_sums(stage);
            // Either all replicas have sums or none has.
            if sums.is_empty() {
                continue;
            }
            let whole = self.gather_pieces(stage, sums)?;
            if self.set.place() == 0 {
                for (parameter, sum) in self.parameters_of(stage).iter().zip(whole) {
                    sum.into_iter().for_each(|sum| held.gradients().set(parameter.id, sum));
                }
            }
        }
        Ok(())
    }

    /// Replaces the pieces of sharded stages' gradients by whole gradients. All replicas call it.
    pub(crate) fn gather_gradients(&mut self, stages: &mut Stages) -> Result<(), LinkError> {
        for stage in self.sharded() {
            let Some(held) = stages.get_mut(&stage) else { continue };
            let ids: Vec<ParamId> = self.parameters_of(stage).iter().map(|p| p.id).collect();
            let own = ids.iter().map(|&id| held.gradients().remove(id)).collect();
            let whole = self.gather_pieces(stage, own)?;
            for (id, gradient) in ids.into_iter().zip(whole) {
                gradient.into_iter().for_each(|gradient| held.gradients().set(id, gradient));
            }
        }
        Ok(())
    }
}
