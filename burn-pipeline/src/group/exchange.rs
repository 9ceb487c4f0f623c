//! A rank's end of what the replicas of its stages send each other; see the numbered steps in the room's header.
//!
//! Guarantees: replicas start from the weights of the first; a parameter that got no gradient on any replica has none
//! after a reduction.

use super::grid::Grid;
use super::mail::Mail;
use super::pieces::{Forms, length, unpack};
use super::reduction::Started;
use super::shard::Shard;
use crate::link::{Direction, Header, Link, LinkError, Message};
use crate::plan::StageId;
use crate::stage::{AnyTensor, ErasedStage, NamedParameter, Payload};
use burn::module::ParamId;
use burn::tensor::DType;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// A list of tensors, one a parameter; `None` where there is none.
pub(crate) type Tensors = Vec<Option<AnyTensor>>;

/// A parameter that the replicas of a stage exchange.
#[derive(Clone, Debug)]
pub(crate) struct Parameter {
    pub(crate) id: ParamId,
    pub(crate) shape: Vec<usize>,
    pub(crate) dtype: DType,
}

/// Trained parameters of a stage in visiting order, each once.
pub(crate) fn trained(held: &dyn ErasedStage) -> Vec<Parameter> {
    let mut seen = BTreeSet::new();
    let parameters = held.named_parameters().into_iter().filter(|parameter| parameter.trainable);
    let parameters = parameters.filter(|parameter| seen.insert(parameter.id.val()));
    parameters.map(|NamedParameter { id, shape, dtype, .. }| Parameter { id, shape, dtype }).collect()
}

/// A rank's end of what the replicas of its stages exchange.
#[derive(Debug)]
pub(crate) struct Group {
    pub(super) grid: Grid,
    parameters: BTreeMap<StageId, Vec<Parameter>>,
    pub(super) mail: Mail,
    /// What is kept of stages whose parameters are sharded; empty where none are.
    pub(super) shards: BTreeMap<StageId, Shard>,
    /// Reductions that were started and not finished, in order.
    pub(super) started: Vec<Started>,
    /// Stages whose gradients are sums over all replicas already.
    pub(super) reduced: BTreeSet<StageId>,
}

impl Group {
    /// Of a rank that holds these stages.
    pub(crate) fn new<'a>(grid: Grid, stages: impl Iterator<Item = (StageId, &'a dyn ErasedStage)>) -> Self {
        let parameters = match grid.replicas() {
            1 => BTreeMap::new(),
            _ => stages.map(|(stage, held)| (stage, trained(held))).collect(),
        };
        let (mail, shards) = (Mail::default(), BTreeMap::new());
        Self { grid, parameters, mail, shards, started: Vec::new(), reduced: BTreeSet::new() }
    }

    pub(crate) fn grid(&self) -> Grid {
        self.grid
    }

    /// Other replicas, with the rank of each.
    pub(super) fn others(&self) -> Vec<(usize, usize)> {
        let own = self.grid.replica();
        self.grid.replica_ranks().enumerate().filter(|(replica, _)| *replica != own).collect()
    }

    pub(super) fn parameters_of(&self, stage: StageId) -> &[Parameter] {
        self.parameters.get(&stage).map(Vec::as_slice).unwrap_or_default()
    }

    pub(super) fn forms(&self, stage: StageId) -> Forms {
        let form = |p: &Parameter| (p.dtype, length(p.shape.iter().product(), self.grid.replicas()));
        self.parameters_of(stage).iter().map(form).collect()
    }

    /// The lists of all replicas, in their order, this one's own among them: waits for the others', each under the header of
    /// its replica.
    pub(super) fn lists(
        &mut self,
        link: &mut dyn Link,
        stage: StageId,
        own: Tensors,
        header: impl Fn(usize) -> Header,
        deadline: Instant,
    ) -> Result<Vec<Tensors>, LinkError> {
        let (forms, rank) = (self.forms(stage), self.grid.rank());
        let mut lists = vec![own];
        for (replica, peer) in self.others() {
            let payload = self.mail.take(link, peer, header(replica), deadline)?;
            lists.push(unpack(payload, &forms).map_err(|reason| LinkError::Lists { rank, peer, reason })?);
        }
        lists[..=self.grid.replica()].rotate_left(1);
        Ok(lists)
    }

    /// Gives replica 0's weights of every stage to all others.
    pub(crate) fn broadcast_weights(
        &mut self,
        link: &mut dyn Link,
        stages: &mut BTreeMap<StageId, Box<dyn ErasedStage>>,
        deadline: Instant,
    ) -> Result<(), LinkError> {
        if self.grid.replicas() == 1 {
            return Ok(());
        }
        let header = |stage| Header { stage, microbatch: 0, direction: Direction::Replica };
        let first = self.grid.rank_in(self.grid.pipeline_rank(), 0);
        for (&stage, held) in stages {
            if self.grid.rank() == first {
                let weights = || held.weights().into_iter().map(|(_, weight)| Some(weight)).collect();
                for (_, rank) in self.others() {
                    link.send(rank, Message { header: header(stage), payload: list(weights()) }, deadline)?;
                }
            } else {
                let payload = link.receive(first, header(stage), deadline)?;
                held.set_weights(payload.tensors().cloned().collect());
            }
        }
        Ok(())
    }

    /// Gives the stages the sums of sharded gradients.
    pub(crate) fn set_shard_gradients(&mut self, stages: &mut BTreeMap<StageId, Box<dyn ErasedStage>>) {
        stages.iter_mut().for_each(|(&stage, held)| self.hand_out_sums(stage, held.as_mut()));
    }

    /// Forgets what is under way (after a failure, or with the gradients).
    pub(crate) fn forget(&mut self) {
        self.mail.clear();
        self.started.clear();
        self.reduced.clear();
        self.forget_shards();
    }
}

/// Tensors as they are, one after the other.
fn list(tensors: Tensors) -> Payload {
    let mut payload = Payload::default();
    tensors.into_iter().flatten().for_each(|tensor| payload.push_tensor(tensor));
    payload
}
