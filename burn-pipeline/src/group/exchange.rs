//! What the replicas of a stage send each other; see the numbered steps in the room's header.
//!
//! Guarantees: a start never waits; sums are added in the order of replicas, so they are bit-equal on all of them; a
//! parameter that got no gradient on any replica has none afterwards.

use super::grid::Grid;
use super::pieces::{Forms, cut, join, length, pack, unpack};
use super::shard::Shard;
use crate::link::{Activity, Direction, Header, Link, LinkError, Message};
use crate::plan::Stage;
use crate::stage::{AnyTensor, ErasedStage, NamedParameter, Payload};
use burn::module::ParamId;
use burn::tensor::DType;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
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
    parameters: BTreeMap<Stage, Vec<Parameter>>,
    pub(super) mail: Mail,
    /// What is kept of stages whose parameters are sharded; empty where none are.
    pub(super) shards: BTreeMap<Stage, Shard>,
    /// Reductions that were started and not finished, in order.
    started: Vec<Started>,
    /// Stages whose gradients are sums over all replicas already.
    reduced: BTreeSet<Stage>,
}

/// A reduction under way: this replica's own pieces.
#[derive(Debug)]
struct Started {
    stage: Stage,
    own: Tensors,
}

/// What came from other replicas and was not used, and what is to come from each, in the order of its sends.
#[derive(Debug, Default)]
pub(super) struct Mail {
    inbox: HashMap<(usize, Header), Payload>,
    posted: HashMap<usize, VecDeque<Header>>,
}

impl Mail {
    pub(super) fn post(&mut self, from: usize, header: Header) {
        self.posted.entry(from).or_default().push_back(header);
    }

    pub(super) fn take(
        &mut self,
        link: &mut dyn Link,
        from: usize,
        header: Header,
        deadline: Instant,
    ) -> Result<Payload, LinkError> {
        loop {
            if let Some(payload) = self.inbox.remove(&(from, header)) {
                return Ok(payload);
            }
            // What was not posted is asked for now: the link says what came instead.
            let next = self.posted.get_mut(&from).and_then(VecDeque::pop_front).unwrap_or(header);
            link.announce(Activity::Waiting(next, from));
            let payload = link.receive(from, next, deadline)?;
            self.inbox.insert((from, next), payload);
        }
    }

    fn clear(&mut self) {
        self.inbox.clear();
        self.posted.clear();
    }
}

impl Group {
    /// Of a rank that holds these stages.
    pub(crate) fn new<'a>(grid: Grid, stages: impl Iterator<Item = (Stage, &'a dyn ErasedStage)>) -> Self {
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
        self.grid.peers().enumerate().filter(|(replica, _)| *replica != own).collect()
    }

    fn header(stage: Stage, from: usize, summed: bool) -> Header {
        Header { stage, microbatch: usize::from(summed), direction: Direction::Gradient { from } }
    }

    pub(super) fn parameters_of(&self, stage: Stage) -> &[Parameter] {
        self.parameters.get(&stage).map(Vec::as_slice).unwrap_or_default()
    }

    pub(super) fn forms(&self, stage: Stage) -> Forms {
        let form = |p: &Parameter| (p.dtype, length(p.shape.iter().product(), self.grid.replicas()));
        self.parameters_of(stage).iter().map(form).collect()
    }

    /// Gives replica 0's weights of every stage to all others.
    pub(crate) fn equal_start(
        &mut self,
        link: &mut dyn Link,
        stages: &mut BTreeMap<Stage, Box<dyn ErasedStage>>,
        deadline: Instant,
    ) -> Result<(), LinkError> {
        if self.grid.replicas() == 1 {
            return Ok(());
        }
        let header = |stage| Header { stage, microbatch: 0, direction: Direction::Replica };
        let first = self.grid.rank_in(self.grid.place(), 0);
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

    /// Sends the other replicas their pieces of a stage's gradients, which leave the stage.
    pub(crate) fn start_reduction(
        &mut self,
        link: &mut dyn Link,
        stage: Stage,
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
            link.send(rank, Message { header: Self::header(stage, own, false), payload }, deadline)?;
            self.mail.post(rank, Self::header(stage, replica, false));
        }
        self.started.push(Started { stage, own: std::mem::take(&mut pieces[own]) });
        Ok(())
    }

    /// Ends all reductions that were started: the stages then hold the sums.
    pub(crate) fn finish_reductions(
        &mut self,
        link: &mut dyn Link,
        stages: &mut BTreeMap<Stage, Box<dyn ErasedStage>>,
        deadline: Instant,
    ) -> Result<(), LinkError> {
        let mut sums = Vec::new();
        for Started { stage, own } in std::mem::take(&mut self.started) {
            let sum = self.sum(link, stage, own, deadline)?;
            if self.is_sharded() {
                self.keep_sums(stage, sum);
                self.reduced.insert(stage);
                continue;
            }
            for (replica, rank) in self.others() {
                let header = Self::header(stage, self.grid.replica(), true);
                link.send(rank, Message { header, payload: pack(sum.clone()) }, deadline)?;
                self.mail.post(rank, Self::header(stage, replica, true));
            }
            sums.push((stage, sum));
        }
        for (stage, own) in sums {
            let mut all = self.received(link, stage, own, true, deadline)?;
            let parameters = self.parameters_of(stage);
            let Some(held) = stages.get_mut(&stage) else { continue };
            for (place, parameter) in parameters.iter().enumerate() {
                let pieces: Option<Vec<AnyTensor>> = all.iter_mut().map(|list| list[place].take()).collect();
                let sum = pieces.map(|pieces| join(pieces, &parameter.shape));
                sum.into_iter().for_each(|sum| held.gradients().set(parameter.id, sum));
            }
            self.reduced.insert(stage);
        }
        Ok(())
    }

    /// What all replicas sent of this one's piece, added up.
    fn sum(
        &mut self,
        link: &mut dyn Link,
        stage: Stage,
        own: Tensors,
        deadline: Instant,
    ) -> Result<Tensors, LinkError> {
        let lists = self.received(link, stage, own, false, deadline)?;
        Ok(lists.into_iter().reduce(Self::added).unwrap_or_default())
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
        stage: Stage,
        own: Tensors,
        summed: bool,
        deadline: Instant,
    ) -> Result<Vec<Tensors>, LinkError> {
        let (forms, mut own) = (self.forms(stage), Some(own));
        let mut lists = Vec::with_capacity(self.grid.replicas());
        for (replica, peer) in self.grid.peers().enumerate() {
            if replica == self.grid.replica() {
                lists.extend(own.take());
                continue;
            }
            let payload = self.mail.take(link, peer, Self::header(stage, replica, summed), deadline)?;
            let rank = self.grid.rank();
            lists.push(unpack(payload, &forms).map_err(|reason| LinkError::Lists { rank, peer, reason })?);
        }
        Ok(lists)
    }

    /// Reduces what the plan did not, in the order of stages: before a step, and where parameters are sharded after each
    /// batch.
    pub(crate) fn reduce_the_rest(
        &mut self,
        link: &mut dyn Link,
        stages: &mut BTreeMap<Stage, Box<dyn ErasedStage>>,
        deadline: Instant,
    ) -> Result<(), LinkError> {
        if self.grid.replicas() > 1 {
            let left: Vec<Stage> = stages.keys().copied().filter(|stage| !self.reduced.contains(stage)).collect();
            for stage in left {
                let Some(held) = stages.get_mut(&stage) else { continue };
                self.start_reduction(link, stage, held.as_mut(), deadline)?;
            }
            self.finish_reductions(link, stages, deadline)?;
        }
        self.reduced.clear();
        Ok(())
    }

    /// Gives the stages the sums of sharded gradients.
    pub(crate) fn hand_out(&mut self, stages: &mut BTreeMap<Stage, Box<dyn ErasedStage>>) {
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
