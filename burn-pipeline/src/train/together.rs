//! One rank a process: what `Pipeline` does on threads with one caller, done by processes that all call.
//!
//! Guarantees: a call returns the same on every process, or an error on every process; calls that differ between
//! processes (another batch size, another method, a batch that one of them refuses) are noticed before anything
//! runs, and the process that differs is named.
//!
//! 1. At the start, [`agree_on_job`] compares what all ranks must have in common; then the facts of all stages are
//!    exchanged.
//! 2. Each call is announced to all ranks; only if all announce the same does it run ([`obey_together`]).
//! 3. What each rank then has to tell (its events, its outputs, its weights) is given to every rank.

use super::rank::{BatchOutcome, Rank};
use super::told::{self, SharedFacts, SharedOutcome};
use super::worker::{Answer, Command, StageFacts, obey};
use crate::execute::{ExecuteError, HandshakeError};
use crate::link::{Activity, Direction, Header, Link, LinkError, Message, all_gather_bytes};
use crate::plan::Stage;
use crate::stage::{AnyTensor, Boundary, Payload, Validate};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::time::{Duration, Instant};

/// What all ranks of a job must have in common: names and values.
pub(super) type Job = Vec<(&'static str, String)>;

/// Compares the job with every rank's; names the first rank that differs from most.
pub(super) fn agree_on_job(link: &mut dyn Link, job: &Job, patience: Duration) -> Result<(), ExecuteError> {
    link.announce(Activity::Gathering);
    let table: Vec<Vec<(String, String)>> = gather(link, job, patience)?;
    let rank = link.rank();
    let value = |row: &[(String, String)], name: &str| {
        let found = row.iter().find(|(known, _)| known == name);
        found.map_or_else(|| "nothing".to_owned(), |(_, value)| value.clone())
    };
    for (name, _) in job {
        let values: Vec<String> = table.iter().map(|row| value(row, name)).collect();
        if let Some((odd, most)) = odd_one(&values) {
            let (theirs, others) = (values[odd].clone(), most.clone());
            let source = HandshakeError { rank: odd, what: (*name).to_owned(), theirs, others };
            return Err(ExecuteError::Handshake { rank, source });
        }
    }
    Ok(())
}

/// The first value that differs from what most have (of equally many, from the earliest), and what most have.
fn odd_one(values: &[String]) -> Option<(usize, &String)> {
    let count = |value: &String| values.iter().filter(|other| *other == value).count();
    let most = values.iter().rev().max_by_key(|value| count(value))?;
    values.iter().position(|value| value != most).map(|odd| (odd, most))
}

/// Gives every rank the facts of all stages. Two ranks that hold one stage must hold the same parameters.
pub(super) fn share_facts(
    link: &mut dyn Link,
    facts: Vec<StageFacts>,
    patience: Duration,
) -> Result<Vec<StageFacts>, ExecuteError> {
    let own: Vec<SharedFacts> = facts.iter().map(SharedFacts::of).collect();
    let rank = link.rank();
    let table: Vec<Vec<SharedFacts>> = gather(link, &own, patience)?;
    let holders = table.iter().enumerate().flat_map(|(rank, row)| row.iter().map(move |facts| (rank, facts)));
    let holders: Vec<(usize, &SharedFacts)> = holders.collect();
    for &(holder, facts) in &holders {
        let first = holders.iter().find(|(_, other)| other.index == facts.index);
        if let Some((_, first)) = first.filter(|(_, first)| first.parameters != facts.parameters) {
            let what = format!("the parameters of stage {}", facts.index);
            let (theirs, others) = (facts.parameters.clone(), first.parameters.clone());
            let source = HandshakeError { rank: holder, what, theirs, others };
            return Err(ExecuteError::Handshake { rank, source });
        }
    }
    let foreign = holders.iter().filter(|(holder, _)| *holder != rank).filter_map(|(_, facts)| facts.foreign());
    Ok(facts.into_iter().chain(foreign).collect())
}

/// Runs a command that every process gives, and gives every process all ranks' answers.
pub(super) fn obey_together(
    rank: &mut Rank,
    mut command: Command,
    clip_norm: Option<f64>,
    validate: Validate,
) -> Result<Vec<Answer>, ExecuteError> {
    if matches!(command, Command::Modules | Command::Engines) {
        // What cannot be told to another process: each gets its own.
        return Ok(vec![obey(rank, command, clip_norm, validate)?]);
    }
    if let Some(apart) = announce(rank, &command)? {
        return Ok(vec![apart]);
    }
    if let Command::Accumulate { began, .. } | Command::Evaluate { began, .. } = &mut command {
        // All ranks are here now: the nearest to one clock that processes have.
        *began = Instant::now();
    }
    let answer = obey(rank, command, clip_norm, validate)?;
    let shared = share(rank, answer);
    rank.executor().link().announce(Activity::Idle);
    rank.told(shared)
}

/// Tells all ranks what this one was asked to do. An answer comes back if they were not all asked the same.
fn announce(rank: &mut Rank, command: &Command) -> Result<Option<Answer>, ExecuteError> {
    let call = match command {
        Command::Refuse(message) => Err(message.clone()),
        command => Ok(name(command)),
    };
    let patience = rank.executor().patience();
    rank.executor().link().announce(Activity::Gathering);
    let gathered = gather::<_, Result<String, String>>(rank.executor().link(), &call, patience);
    let table = rank.told(gathered)?;
    if let Some((rank, message)) = table.iter().enumerate().find_map(|(r, call)| Some((r, call.as_ref().err()?))) {
        return Ok(Some(Answer::Refused { rank, message: message.clone() }));
    }
    let calls: Vec<String> = table.into_iter().flatten().collect();
    let apart = odd_one(&calls);
    Ok(apart.map(|(rank, most)| Answer::Apart { rank, theirs: calls[rank].clone(), others: most.clone() }))
}

/// A call with all that must be the same on every rank.
fn name(command: &Command) -> String {
    match command {
        Command::Accumulate { plan, batch, .. } | Command::Evaluate { plan, batch, .. } => {
            let (what, plan) = (command.name(), plan.plan());
            format!("{what} of {} over {} samples in {} microbatches", plan.name(), batch.samples(), batch.len())
        }
        Command::Apply { learning_rate } => format!("{} at learning rate {learning_rate}", command.name()),
        command => command.name().to_owned(),
    }
}

fn share(rank: &mut Rank, answer: Answer) -> Result<Vec<Answer>, ExecuteError> {
    match answer {
        Answer::Batch(outcome) => Ok(share_outcome(rank, outcome)?.into_iter().map(Answer::Batch).collect()),
        Answer::Tensors(stages) => Ok(vec![Answer::Tensors(share_tensors(rank, stages)?)]),
        Answer::Links(links) => {
            let patience = rank.executor().patience();
            let table = gather(rank.executor().link(), &links, patience)?;
            Ok(table.into_iter().map(Answer::Links).collect())
        }
        Answer::Told(own) => {
            let patience = rank.executor().patience();
            let table: Vec<Vec<String>> = gather(rank.executor().link(), &own, patience)?;
            Ok(table.into_iter().map(Answer::Told).collect())
        }
        // The same on every rank already.
        answer => Ok(vec![answer]),
    }
}

fn share_outcome(rank: &mut Rank, outcome: BatchOutcome) -> Result<Vec<BatchOutcome>, ExecuteError> {
    let patience = rank.executor().patience();
    let table: Vec<SharedOutcome> = gather(rank.executor().link(), &SharedOutcome::of(&outcome), patience)?;
    let (loss, observed, me) = (outcome.loss, outcome.observed.clone(), rank.executor().rank());
    let samples: Vec<Vec<usize>> = table.iter().map(|shared| shared.outputs.clone()).collect();
    let own: Vec<Payload> = outcome.outputs.iter().map(|(_, payload)| payload.clone()).collect();
    let payloads = spread(rank, own, &samples.iter().map(Vec::len).collect::<Vec<_>>())?;
    let rows = table.into_iter().zip(samples).zip(payloads).enumerate();
    let mut outcomes: Vec<BatchOutcome> = rows
        .map(|(holder, ((shared, samples), payloads))| {
            let outputs = samples.into_iter().zip(payloads).collect();
            shared.outcome(holder, loss, observed.clone(), outputs)
        })
        .collect();
    if let Some(place) = outcomes.get_mut(me) {
        *place = outcome;
    }
    Ok(outcomes)
}

/// Tensors of some stages.
type OfStages = Vec<(Stage, Vec<Option<AnyTensor>>)>;

fn share_tensors(rank: &mut Rank, stages: OfStages) -> Result<OfStages, ExecuteError> {
    let patience = rank.executor().patience();
    let own: Vec<(usize, usize)> = stages.iter().map(|(stage, _)| (stage.replica(), stage.index())).collect();
    let table: Vec<Vec<(usize, usize)>> = gather(rank.executor().link(), &own, patience)?;
    let payloads = stages.into_iter().map(|(_, tensors)| tensors.into_payload()).collect();
    let spread = spread(rank, payloads, &table.iter().map(Vec::len).collect::<Vec<_>>())?;
    let me = rank.executor().rank();
    let all = table.into_iter().zip(spread).flat_map(|(stages, payloads)| stages.into_iter().zip(payloads));
    all.map(|(stage, payload)| {
        let stage = told::stage(stage).unwrap_or(Stage::new(0));
        let tensors = Vec::<Option<AnyTensor>>::from_payload(payload);
        let tensors = tensors.map_err(|e| ExecuteError::Device { rank: me, message: e.to_string() })?;
        Ok((stage, tensors))
    })
    .collect()
}

/// Gives every rank the payloads of every rank, of which each has as many as `counts` says. Rank by rank, so that
/// it ends even where sends wait for their receives.
fn spread(rank: &mut Rank, own: Vec<Payload>, counts: &[usize]) -> Result<Vec<Vec<Payload>>, ExecuteError> {
    let me = rank.executor().rank();
    let mut all = Vec::with_capacity(counts.len());
    for (holder, &count) in counts.iter().enumerate() {
        let stage = rank.placement().stages_of(holder).first().copied().unwrap_or(Stage::new(0));
        let header = |microbatch| Header { stage, microbatch, direction: Direction::Spread };
        let deadline = rank.executor().deadline();
        let link = rank.executor().link();
        if holder != me {
            let receive = |index| link.receive(holder, header(index), deadline);
            let received: Result<Vec<_>, _> = (0..count).map(receive).collect();
            all.push(received.map_err(|source| failed(me, source))?);
            continue;
        }
        for to in (0..counts.len()).filter(|&to| to != me) {
            for (index, payload) in own.iter().enumerate() {
                let message = Message { header: header(index), payload: payload.clone() };
                link.send(to, message, deadline).map_err(|source| failed(me, source))?;
            }
        }
        all.push(own.clone());
    }
    Ok(all)
}

/// Gives every rank what every rank says, as JSON.
fn gather<S: Serialize + ?Sized, T: DeserializeOwned>(
    link: &mut dyn Link,
    own: &S,
    patience: Duration,
) -> Result<Vec<T>, ExecuteError> {
    let rank = link.rank();
    let device = |error: serde_json::Error| ExecuteError::Device { rank, message: error.to_string() };
    let bytes = serde_json::to_vec(own).map_err(device)?;
    let table = all_gather_bytes(link, &bytes, Instant::now() + patience).map_err(|source| failed(rank, source))?;
    table.iter().map(|bytes| serde_json::from_slice(bytes).map_err(device)).collect()
}

fn failed(rank: usize, source: LinkError) -> ExecuteError {
    ExecuteError::Link { rank, task: None, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_odd_one_is_the_one_that_most_do_not_agree_with() {
        let odd = |values: &[&str]| {
            let values: Vec<String> = values.iter().map(|value| (*value).to_owned()).collect();
            odd_one(&values).map(|(rank, most)| (rank, most.clone()))
        };
        assert_eq!(odd(&["a", "a", "a"]), None);
        assert_eq!(odd(&["a", "a", "b"]), Some((2, "a".to_owned())));
        assert_eq!(odd(&["b", "a", "a"]), Some((0, "a".to_owned())));
        assert_eq!(odd(&["a", "b"]), Some((1, "a".to_owned())));
        assert_eq!(odd(&[]), None);
    }
}
