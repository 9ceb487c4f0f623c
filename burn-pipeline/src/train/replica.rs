//! The two replicas of a bidirectional placement: equal weights at the start, one gradient at every step.
//!
//! Guarantees: both replicas of a stage hold bit-equal weights after every step: they start from replica 0's,
//! and both add the gradients in the same order, replica 0's first.
//!
//! Each rank first sends for all its stages, in model order, and then receives in the same order; so messages
//! between two ranks come in the order in which both ask for them, and no rank waits for one that waits for it.

use crate::execute::{ExecuteError, Executor};
use crate::link::{Direction, Header, Message};
use crate::plan::{Placement, Stage};
use crate::stage::{Accumulation, AnyTensor, Boundary, ErasedStage, Payload};

/// Every stage of this rank with its other replica's place, in model order of the stages.
fn pairs(executor: &mut Executor, placement: &Placement) -> Vec<(Stage, Stage)> {
    if placement.routes() < 2 {
        return Vec::new();
    }
    let other = |stage: Stage| (stage, Stage::in_replica(1 - stage.replica(), stage.index()));
    let mut pairs: Vec<(Stage, Stage)> = executor.stages().keys().copied().map(other).collect();
    pairs.sort_by_key(|(stage, _)| (stage.index(), stage.replica()));
    pairs
}

/// Gives replica 1 of every stage replica 0's weights.
pub(super) fn copy_weights(executor: &mut Executor, placement: &Placement) -> Result<(), ExecuteError> {
    let pairs = pairs(executor, placement);
    for &(stage, other) in pairs.iter().filter(|(stage, _)| stage.replica() == 0) {
        let weights = executor.stages()[&stage].weights().into_iter().map(|(_, weight)| weight).collect::<Vec<_>>();
        send(executor, placement, other, weights.into_payload())?;
    }
    for &(stage, other) in pairs.iter().filter(|(stage, _)| stage.replica() == 1) {
        let weights = receive(executor, placement, stage, other)?;
        if let Some(held) = executor.stages().get_mut(&stage) {
            held.set_weights(weights);
        }
    }
    Ok(())
}

/// Replaces the gradients of every stage by the sum over its replicas.
pub(super) fn sum_gradients(executor: &mut Executor, placement: &Placement) -> Result<(), ExecuteError> {
    let pairs = pairs(executor, placement);
    for &(stage, other) in &pairs {
        let gradients = gathered(executor, stage);
        send(executor, placement, other, gradients.into_payload())?;
    }
    for &(stage, other) in &pairs {
        let theirs: Vec<Option<AnyTensor>> = receive(executor, placement, stage, other)?;
        let Some(held) = executor.stages().get_mut(&stage) else { continue };
        for (id, theirs) in held.parameters().into_iter().zip(theirs) {
            let ours = held.gradients().remove(id);
            let (first, second) = if stage.replica() == 0 { (ours, theirs) } else { (theirs, ours) };
            let sum = match (first, second) {
                (Some(first), Some(second)) => Some(first.plus(second)),
                (one, other) => one.or(other),
            };
            if let Some(sum) = sum {
                held.gradients().set(id, sum);
            }
        }
    }
    Ok(())
}

/// With ordered accumulation: adds replica 1's gradients of this batch to replica 0's sum, microbatch by
/// microbatch, as one device would. Replica 0 then holds the sum, replica 1 nothing.
///
/// Replica 0 hands its sum over; replica 1 adds what it held back, in order, and returns it.
pub(super) fn chain(executor: &mut Executor, placement: &Placement) -> Result<(), ExecuteError> {
    let ordered = |stage: &mut Box<dyn ErasedStage>| stage.gradients().accumulation() == Accumulation::Ordered;
    if !executor.stages().values_mut().all(ordered) {
        return Ok(());
    }
    let pairs = pairs(executor, placement);
    for replica in [0, 1] {
        for &(stage, other) in pairs.iter().filter(|(stage, _)| stage.replica() == replica) {
            if replica == 1 {
                take_over(executor, placement, stage, other)?;
                executor.stages().get_mut(&stage).into_iter().for_each(|held| held.gradients().release());
            }
            let sums = gathered(executor, stage);
            send(executor, placement, other, sums.into_payload())?;
            executor.stages().get_mut(&stage).into_iter().for_each(|held| held.gradients().clear());
        }
    }
    for &(stage, other) in pairs.iter().filter(|(stage, _)| stage.replica() == 0) {
        take_over(executor, placement, stage, other)?;
    }
    Ok(())
}

/// Receives the other replica's sums and makes them this stage's.
fn take_over(executor: &mut Executor, placement: &Placement, stage: Stage, other: Stage) -> Result<(), ExecuteError> {
    let sums: Vec<Option<AnyTensor>> = receive(executor, placement, stage, other)?;
    let Some(held) = executor.stages().get_mut(&stage) else { return Ok(()) };
    for (id, sum) in held.parameters().into_iter().zip(sums) {
        sum.into_iter().for_each(|sum| held.gradients().set(id, sum));
    }
    Ok(())
}

/// The gathered gradient of each parameter, in visiting order.
fn gathered(executor: &mut Executor, stage: Stage) -> Vec<Option<AnyTensor>> {
    let Some(held) = executor.stages().get_mut(&stage) else { return Vec::new() };
    let parameters = held.parameters();
    parameters.into_iter().map(|id| held.gradients().get(id).cloned()).collect()
}

fn header(stage: Stage) -> Header {
    Header { stage, microbatch: 0, direction: Direction::Replica }
}

fn send(executor: &mut Executor, placement: &Placement, to: Stage, payload: Payload) -> Result<(), ExecuteError> {
    let (rank, deadline) = (executor.rank(), executor.deadline());
    let message = Message { header: header(to), payload };
    let sent = executor.link().send(placement.rank_of(to), message, deadline);
    sent.map_err(|source| ExecuteError::Link { rank, task: None, source })
}

fn receive<T: Boundary>(
    executor: &mut Executor,
    placement: &Placement,
    stage: Stage,
    from: Stage,
) -> Result<T, ExecuteError> {
    let (rank, deadline) = (executor.rank(), executor.deadline());
    let received = executor.link().receive(placement.rank_of(from), header(stage), deadline);
    let payload = received.map_err(|source| ExecuteError::Link { rank, task: None, source })?;
    T::from_payload(payload).map_err(|e| ExecuteError::Device { rank, message: e.to_string() })
}
