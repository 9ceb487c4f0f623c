//! A rank's end of the exchanges between the replicas of its stages; see the numbered steps in `mod.rs`.
//!
//! This file has the state; more methods are in `reduction.rs`, `sharding.rs` and `optimizer_states.rs`.
//!
//! Guarantees: replicas start from the weights of replica 0; a parameter that got no gradient on any replica has
//! none after a reduction.

use super::parameters::{Parameter, Values, fits, trained};
use crate::link::{Header, LinkError, MessageKind};
use crate::payload::{AnyTensor, Payload};
use crate::ranks::{Inbox, RankSet, TensorList};
use crate::stage::ErasedStage;
use crate::tensor_parallel::TensorGroup;
use burn::module::ParamId;
use burn_pipeline_plan::plan::StageId;
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// The stages of a rank, in model order.
pub(crate) type Stages = BTreeMap<StageId, Box<dyn ErasedStage>>;

/// A reduction that was started and not finished.
#[derive(Debug)]
pub(super) struct Reduction {
    pub(super) stage: StageId,
    /// This replica's own part: its pieces of the gradients, then their sums.
    pub(super) own: TensorList,
    /// True if the sums were made and sent.
    pub(super) summed: bool,
}

/// A replica's state of a stage whose parameters are sharded.
#[derive(Debug, Default)]
pub(super) struct Shard {
    pub(super) state: ShardState,
    /// Sums of the pieces' gradients since the last step; empty if there are none.
    pub(super) sums: TensorList,
}

/// Where the parameters of a sharded stage are.
#[derive(Debug, Default)]
pub(super) enum ShardState {
    /// The module has this replica's pieces.
    #[default]
    Released,
    /// The other replicas were sent this replica's pieces of these values, and the module still has these.
    Gathering(Values, TensorList),
    /// The module has these values whole; this replica's pieces are kept here.
    Gathered(Values, TensorList),
}

/// A rank's end of the exchanges between the replicas of its stages.
#[derive(Debug)]
pub(crate) struct ReplicaGroup {
    pub(super) set: RankSet,
    parameters: BTreeMap<StageId, Vec<Parameter>>,
    /// Parameters that are cut over the replicas, so that each piece has its whole gradient: they are neither
    /// summed nor copied.
    spread: HashSet<ParamId>,
    /// Stages whose parameters are sharded.
    pub(super) shards: BTreeMap<StageId, Shard>,
    /// Reductions that were started and not finished, in the order of their starts.
    pub(super) reductions: Vec<Reduction>,
    /// The values in whose type gradients are sent.
    pub(super) gradients: Values,
    /// Stages whose gradients are already sums over all replicas.
    pub(super) reduced: BTreeSet<StageId>,
}

impl ReplicaGroup {
    /// Makes the end of a rank that holds these stages, of which all replicas hold copies.
    pub(crate) fn new(replicas: &TensorGroup, stages: &Stages) -> Self {
        let (set, spread) = (replicas.set().clone(), replicas.cut_parameters());
        let (mut parameters, mut gradients) = (BTreeMap::new(), Values::Stepped);
        for (&stage, held) in stages.iter().filter(|_| set.size() > 1) {
            parameters.insert(stage, trained(held.as_ref(), &spread));
            if held.options().precision.as_ref().is_some_and(|precision| precision.reduces_in_half) {
                gradients = Values::Computed;
            }
        }
        let (reductions, reduced) = (Vec::new(), BTreeSet::new());
        Self { set, parameters, spread, shards: BTreeMap::new(), reductions, gradients, reduced }
    }

    pub(super) fn parameters_of(&self, stage: StageId) -> &[Parameter] {
        self.parameters.get(&stage).map(Vec::as_slice).unwrap_or_default()
    }

    /// Updates which parameters of the stages are trained: a stage may have frozen or unfrozen some.
    ///
    /// # Errors
    /// Returns the stage if its parameters are sharded, since pieces are cut at the start.
    pub(crate) fn update_trained(&mut self, stages: &Stages) -> Result<(), StageId> {
        for (stage, known) in &mut self.parameters {
            let Some(held) = stages.get(stage) else { continue };
            let ids = |parameters: &[Parameter]| parameters.iter().map(|p| p.id).collect::<Vec<_>>();
            let now = trained(held.as_ref(), &self.spread);
            match ids(&now) == ids(known) {
                // The shapes of a sharded stage's parameters are those of pieces now.
                true => known.iter_mut().zip(now).for_each(|(known, now)| known.computed = now.computed),
                false if self.shards.contains_key(stage) => return Err(*stage),
                false => *known = now,
            }
        }
        Ok(())
    }

    pub(crate) fn is_sharded(&self, stage: StageId) -> bool {
        self.shards.contains_key(&stage)
    }

    pub(crate) fn any_sharded(&self) -> bool {
        !self.shards.is_empty()
    }

    /// A check that a list has this stage's pieces of these values.
    pub(super) fn fitting(&self, stage: StageId, values: Values) -> impl Fn(&TensorList) -> Result<(), String> {
        move |list| fits(list, self.parameters_of(stage), values, self.set.size())
    }

    /// Gives all replicas the weights of replica 0, for every stage, except weights that are cut over replicas.
    pub(crate) fn broadcast_weights(&mut self, stages: &mut Stages) -> Result<(), LinkError> {
        if self.set.size() == 1 {
            return Ok(());
        }
        for (&stage, held) in stages {
            let header = Header::of_stage(MessageKind::Replica, stage);
            if self.set.place() == 0 {
                let mut payload = Payload::default();
                let copied = held.weights().into_iter().filter(|(id, _)| !self.spread.contains(id));
                copied.for_each(|(_, weight)| payload.push_tensor(weight));
                self.set.others().try_for_each(|(replica, _)| self.set.send(replica, header, payload.clone()))?;
            } else {
                let payload = self.set.receive(0, header)?;
                let mut copies = payload.tensors().cloned();
                let weight =
                    |(id, own): (ParamId, AnyTensor)| if self.spread.contains(&id) { Some(own) } else { copies.next() };
                // No copy is left over: another replica's stage has as many parameters.
                held.set_weights(held.weights().into_iter().filter_map(weight).collect());
            }
        }
        Ok(())
    }

    /// Drops what a failed call started: exchanges, and the whole parameters of sharded stages. Sums of gradients
    /// stay.
    pub(crate) fn restart(&mut self, stages: &mut Stages) {
        self.set.with_messages(Inbox::clear);
        self.reductions.clear();
        for (&stage, held) in stages {
            if let Some(shard) = self.shards.get_mut(&stage)
                && matches!(shard.state, ShardState::Gathering(..))
            {
                // The module still has the pieces.
                shard.state = ShardState::Released;
            }
            self.release(stage, held.as_mut());
        }
    }

    /// Drops all started exchanges and all sums, when gradients are dropped.
    pub(crate) fn clear(&mut self) {
        self.set.with_messages(Inbox::clear);
        self.reductions.clear();
        self.reduced.clear();
        self.shards.values_mut().for_each(|shard| shard.sums.clear());
    }
}
