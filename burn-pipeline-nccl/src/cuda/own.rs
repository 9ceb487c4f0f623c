//! NCCL's collectives: those of tensor-parallel groups, and sums over other groups.
//!
//! Guarantees: a member launches a collective only when all of them have reached it and allocated its memory
//! (`host/turns.rs`). If one is elsewhere, all get an error and none launches. Results come in the order in which
//! collectives were begun.
//!
//! 1. One split of the world makes the groups of all ranks: ranks of a group pass its first rank as their colour.
//! 2. A start goes to the thread that serves the link (`collect.rs`), and its results are awaited in that order. So
//!    a program may compute between the two, and several collectives may be open.
//! 3. Members that meet ([`Collectives::meet`]) begin a collective without tensors, which none of them launches.

use super::command::{Answer, Answered, Collect, Command, OWN, Own, Results};
use super::link::NcclLink;
use super::tensors::{from_cube, into_cube};
use burn_cubecl::tensor::CubeTensor;
use burn_pipeline::link::{Collectives, FlatCollective, Link, LinkError};
use burn_pipeline::payload::{AnyTensor, TensorKind};
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

impl NcclLink {
    /// Begins a collective over a group's communicator. Returns where its results arrive.
    pub(super) fn collect(
        &mut self,
        group: u32,
        members: Vec<usize>,
        (collective, what): (FlatCollective, String),
        tensors: Vec<Option<AnyTensor>>,
    ) -> Result<Receiver<Answered<Results>>, LinkError> {
        self.endpoint.mailbox().fail_if_failed()?;
        let onto = |tensor: AnyTensor| into_cube(tensor.to_device(&self.order.device));
        let cubes = tensors.into_iter().map(|tensor| tensor.map(onto).transpose()).collect::<Result<_, _>>();
        let tensors: Results = cubes.map_err(|error| self.closed(&error))?;
        let round = self.rounds.entry(group).or_default();
        let (done, answer) = channel();
        let collect = Collect { group, collective, what, round: *round, members, tensors, done };
        *round += 1;
        self.command(Command::Collect(collect))?;
        Ok(answer)
    }

    /// Waits for the results of a collective.
    pub(super) fn collected(
        &self,
        members: &[usize],
        answer: &Receiver<Answered<Results>>,
        deadline: Instant,
    ) -> Result<Vec<Option<AnyTensor>>, LinkError> {
        let peer = members.iter().copied().find(|&rank| rank != self.rank()).unwrap_or_default();
        let (results, after) = self.answer(peer, "its part of a collective", answer, deadline)?;
        self.order.before_use(after.as_ref()).map_err(|error| self.closed(&error))?;
        let back = |tensor: CubeTensor| from_cube(TensorKind::of(tensor.dtype), tensor);
        Ok(results.into_iter().map(|tensor| tensor.map(back)).collect())
    }
}

impl NcclLink {
    /// Makes communicators by splits, each with its number and this rank's colour. A split blocks the thread, so no
    /// rank may need that of another one: each rank's messages are launched first, since their communicators are made
    /// at the first one.
    fn split(&mut self, splits: Vec<(u32, Option<u16>)>, deadline: Instant) -> Result<(), LinkError> {
        self.timeout.hear(deadline);
        // The first other rank stands for all.
        let other = usize::from(self.rank() == 0);
        let (done, answer): (Answer<()>, _) = channel();
        self.command(Command::WhenLaunched { done })?;
        self.answer(other, "the launch of earlier messages", &answer, deadline)?;
        self.barrier(deadline)?;
        let (done, answer): (Answer<()>, _) = channel();
        self.command(Command::Form { splits, deadline, done })?;
        self.answer(other, "the forming of sets of ranks", &answer, deadline).map(drop)
    }
}

impl Collectives for NcclLink {
    fn form(&mut self, group: &[usize], deadline: Instant) -> Result<(), LinkError> {
        let color = group.first().filter(|_| group.len() > 1).map(|&first| first as u16);
        self.split(vec![(OWN, color)], deadline)?;
        self.own = Own { ranks: group.to_vec(), begun: VecDeque::new() };
        Ok(())
    }

    fn begin(&mut self, collective: FlatCollective, what: String, tensor: AnyTensor) -> Result<(), LinkError> {
        let answer = self.collect(OWN, self.own.ranks.clone(), (collective, what), vec![Some(tensor)])?;
        self.own.begun.push_back(answer);
        Ok(())
    }

    fn end(&mut self, deadline: Instant) -> Result<AnyTensor, LinkError> {
        self.timeout.hear(deadline);
        let begun = self.own.begun.pop_front();
        let results = begun.map(|answer| self.collected(&self.own.ranks, &answer, deadline)).transpose()?;
        let result = results.into_iter().flatten().flatten().next();
        let message = "no collective was begun".to_owned();
        result.ok_or_else(|| LinkError::Closed { rank: self.rank(), message })
    }

    fn meet(&mut self, what: String, deadline: Instant) -> Result<(), LinkError> {
        self.timeout.hear(deadline);
        let nothing = (FlatCollective::AllReduce, what);
        let answer = self.collect(OWN, self.own.ranks.clone(), nothing, Vec::new())?;
        self.collected(&self.own.ranks, &answer, deadline).map(drop)
    }

    fn form_sets(&mut self, sets: &[Vec<usize>], deadline: Instant) -> Result<(), LinkError> {
        let me = self.rank();
        let colors = sets.iter().map(|set| set.contains(&me).then_some(0));
        self.split((0..).zip(colors).collect(), deadline)
    }

    fn sum(
        &mut self,
        set: usize,
        ranks: &[usize],
        tensors: Vec<Option<AnyTensor>>,
        deadline: Instant,
    ) -> Result<Vec<Option<AnyTensor>>, LinkError> {
        self.timeout.hear(deadline);
        let sum = (FlatCollective::AllReduce, String::new());
        let answer = self.collect(set as u32, ranks.to_vec(), sum, tensors)?;
        self.collected(ranks, &answer, deadline)
    }
}
