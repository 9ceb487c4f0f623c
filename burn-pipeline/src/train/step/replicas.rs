//! The two copies of each stage in a bidirectional placement, one per route: equal weights at the start, one gradient
//! per step.
//!
//! Guarantees: both copies of a stage hold bitwise equal weights after every step, because they start from route 0's
//! weights, and the sum of two numbers does not depend on their order. Ranks cannot deadlock. Summing needs memory for
//! only a few parameters, because the sums stay where the gradients are.
//!
//! 1. Each rank first sends for all its stages, in model order, and then receives in the same order; gradients in parts
//!    of some megabytes. So two ranks send and receive their messages in the same order.
//! 2. With an odd number of ranks the middle one holds both copies of the middle stage: what it sends to itself stays
//!    in its [`Mailbox`] and crosses no link.
//! 3. With ordered accumulation, data-parallel replicas pass their sums along in the same way: see [`chain`].

use crate::execute::{ExecuteError, Executor};
use crate::link::{Header, MessageKind};
use crate::payload::{AnyTensor, Boundary, Payload};
use crate::stage::{Accumulation, ErasedStage};
use burn::module::ParamId;
use burn_pipeline_plan::plan::{Placement, StageId};
use std::collections::HashMap;

/// The bytes of parameters whose gradients are sent together; fewer bytes would mean waiting for more messages.
const TOGETHER: usize = 4 << 20;

/// What a rank sends to itself, by receiving stage.
#[derive(Default)]
struct Mailbox(HashMap<StageId, Payload>);

/// Every stage of this rank with its copy on the other route and the rank that holds it, in model order.
fn pairs(executor: &mut Executor, placement: &Placement) -> Vec<(StageId, StageId, usize)> {
    if placement.routes() < 2 {
        return Vec::new();
    }
    let grid = executor.grid();
    let pair = |&stage: &StageId| {
        let other = StageId::in_route(1 - stage.route(), stage.index());
        (stage, other, grid.rank_of(placement.rank_of(other)))
    };
    let mut pairs: Vec<(StageId, StageId, usize)> = executor.stages().keys().map(pair).collect();
    pairs.sort_by_key(|(stage, ..)| (stage.index(), stage.route()));
    pairs
}

/// Gives every stage's copy on route 1 the weights of route 0.
pub(super) fn copy_weights(executor: &mut Executor, placement: &Placement) -> Result<(), ExecuteError> {
    let (pairs, mut mailbox) = (pairs(executor, placement), Mailbox::default());
    for &(stage, other, to) in pairs.iter().filter(|(stage, ..)| stage.route() == 0) {
        let weights = executor.stages()[&stage].weights().into_iter().map(|(_, weight)| weight).collect::<Vec<_>>();
        mailbox.send(executor, to, other, weights.into_payload())?;
    }
    for &(stage, _, from) in pairs.iter().filter(|(stage, ..)| stage.route() == 1) {
        let weights = mailbox.receive(executor, stage, from)?;
        if let Some(held) = executor.stages().get_mut(&stage) {
            held.set_weights(weights);
        }
    }
    Ok(())
}

/// Replaces the gradients of every stage by the sum over its two copies, a few parameters at a time.
pub(super) fn sum_gradients(executor: &mut Executor, placement: &Placement) -> Result<(), ExecuteError> {
    let (pairs, mut mailbox) = (pairs(executor, placement), Mailbox::default());
    let together: Vec<Vec<Vec<ParamId>>> = pairs.iter().map(|(stage, ..)| together(executor, *stage)).collect();
    for part in 0..together.iter().map(Vec::len).max().unwrap_or_default() {
        let parts = || pairs.iter().zip(&together).filter_map(|(pair, parts)| Some((pair, parts.get(part)?)));
        for (&(stage, other, to), parameters) in parts() {
            let gradients = gathered(executor, stage, parameters);
            // Scaling by 1 makes a copy: the other rank reads the copies while this one adds to its own in place.
            let gradients: Vec<_> = gradients.into_iter().map(|own| own.map(|own| own.scale(1.0))).collect();
            mailbox.send(executor, to, other, gradients.into_payload())?;
        }
        for (&(stage, _, from), parameters) in parts() {
            let theirs: Vec<Option<AnyTensor>> = mailbox.receive(executor, stage, from)?;
            let Some(held) = executor.stages().get_mut(&stage) else { continue };
            for (&id, theirs) in parameters.iter().zip(theirs) {
                let sum = held.gradients().remove(id).into_iter().chain(theirs).reduce(AnyTensor::plus);
                sum.into_iter().for_each(|sum| held.gradients().set(id, sum));
            }
        }
    }
    Ok(())
}

/// A stage's parameters in visiting order, in parts of [`TOGETHER`] bytes.
fn together(executor: &mut Executor, stage: StageId) -> Vec<Vec<ParamId>> {
    let held = &executor.stages()[&stage];
    // A parameter may be at several paths.
    let bytes: HashMap<ParamId, usize> = held.weights().into_iter().map(|(id, weight)| (id, weight.bytes())).collect();
    let (mut parts, mut part, mut size) = (Vec::new(), Vec::new(), 0);
    for id in held.parameters() {
        part.push(id);
        size += bytes[&id];
        if size >= TOGETHER {
            parts.push(std::mem::take(&mut part));
            size = 0;
        }
    }
    parts.push(part);
    parts
}

/// With ordered accumulation: passes the sum of this batch's gradients from replica to replica, in the order of the
/// batch's microbatches, so they are added as on one device. At the end the first replica holds the sum, the others
/// nothing.
///
/// The first sends its sum to the second. Each other one adds the gradients that it held back, in order, and sends the
/// result to the next; the last sends it back to the first.
pub(super) fn chain(executor: &mut Executor, placement: &Placement) -> Result<(), ExecuteError> {
    let ordered = |stage: &mut Box<dyn ErasedStage>| stage.gradients().accumulation == Accumulation::Ordered;
    let (routes, replicas, own) = (placement.routes(), executor.grid().replicas(), executor.grid().replica());
    let copies = routes * replicas;
    if copies < 2 || !executor.stages().values_mut().all(ordered) {
        return Ok(());
    }
    let mut mailbox = Mailbox::default();
    let mut stages: Vec<StageId> = executor.stages().keys().copied().collect();
    stages.sort_by_key(|stage| (stage.index(), stage.route()));
    // Copy number `place` of a stage, over routes and data-parallel replicas, and the rank that holds it.
    let copy = |executor: &Executor, index: usize, place: usize| {
        let stage = StageId::in_route(place % routes, index);
        // Pieces of the vocabulary are not stages; they are on the same pipeline rank in all replicas.
        let rank = match placement.contains(stage) {
            true => placement.rank_of(stage),
            false => executor.grid().pipeline_rank(),
        };
        let grid = executor.grid();
        (stage, grid.rank_at(rank, place / routes, grid.member()))
    };
    for place in 0..copies {
        for &stage in stages.iter().filter(|stage| own * routes + stage.route() == place) {
            if place > 0 {
                let (_, from) = copy(executor, stage.index(), place - 1);
                take_sums(&mut mailbox, executor, stage, from)?;
                executor.stages().get_mut(&stage).into_iter().for_each(|held| held.gradients().release());
            }
            let (next, to) = copy(executor, stage.index(), (place + 1) % copies);
            let all = executor.stages()[&stage].parameters();
            let sums = gathered(executor, stage, &all);
            mailbox.send(executor, to, next, sums.into_payload())?;
            executor.stages().get_mut(&stage).into_iter().for_each(|held| held.gradients().clear());
        }
    }
    for &stage in stages.iter().filter(|stage| own == 0 && stage.route() == 0) {
        let (_, from) = copy(executor, stage.index(), copies - 1);
        take_sums(&mut mailbox, executor, stage, from)?;
    }
    Ok(())
}

/// Receives the sums of the previous copy and makes them this stage's.
fn take_sums(mailbox: &mut Mailbox, executor: &mut Executor, stage: StageId, from: usize) -> Result<(), ExecuteError> {
    let sums: Vec<Option<AnyTensor>> = mailbox.receive(executor, stage, from)?;
    let Some(held) = executor.stages().get_mut(&stage) else { return Ok(()) };
    for (id, sum) in held.parameters().into_iter().zip(sums) {
        sum.into_iter().for_each(|sum| held.gradients().set(id, sum));
    }
    Ok(())
}

/// The accumulated gradient of each of these parameters.
fn gathered(executor: &mut Executor, stage: StageId, parameters: &[ParamId]) -> Vec<Option<AnyTensor>> {
    let Some(held) = executor.stages().get_mut(&stage) else { return Vec::new() };
    parameters.iter().map(|id| held.gradients().get(*id).cloned()).collect()
}

fn header(stage: StageId) -> Header {
    Header::of_stage(MessageKind::Replica, stage)
}

impl Mailbox {
    fn send(
        &mut self,
        executor: &mut Executor,
        to: usize,
        stage: StageId,
        payload: Payload,
    ) -> Result<(), ExecuteError> {
        if to == executor.rank() {
            self.0.insert(stage, payload);
            return Ok(());
        }
        executor.send_to(to, header(stage), payload)
    }

    fn receive<T: Boundary>(
        &mut self,
        executor: &mut Executor,
        stage: StageId,
        from: usize,
    ) -> Result<T, ExecuteError> {
        let payload = match self.0.remove(&stage) {
            Some(payload) => payload,
            None => executor.receive_from(from, header(stage))?,
        };
        let rank = executor.rank();
        T::from_payload(payload).map_err(|e| ExecuteError::Decode { rank, message: e.to_string() })
    }
}
