//! One rank a process: what `Pipeline` does on threads with one caller, done by processes that all call.
//!
//! Guarantees: a call returns the same on every process, or an error on every process; calls that differ between
//! processes (another batch size, another method, a batch that one of them refuses) are noticed before anything
//! runs, and the process that differs is named.
//!
//! 1. At the start, [`agree_on_job`] compares what all ranks must have in common; then the facts of all stages are
//!    exchanged.
//! 2. Each call is announced to all ranks; only if all announce the same does it run ([`obey_together`]).
//! 3. What each rank then has to tell (its events, its weights, what it has written of a checkpoint) is given to every
//!    rank. Outputs of an evaluation go to the ranks that ask for them.

use crate::cost::LinkOverride;
use crate::execute::{ExecuteError, HandshakeError};
use crate::link::{self, Activity, Direction, Header, Link, LinkError, Message};
use crate::plan::StageId;
use crate::stage::{AnyTensor, Boundary, NamedWeight, Payload, Validate};
use crate::train::checkpoint::CheckpointError;
use crate::train::control::command::{Answer, Command, StageFacts};
use crate::train::control::facts::{self, SharedFacts, SharedOutcome};
use crate::train::control::worker::obey;
use crate::train::step::rank::{BatchOutcome, Rank};
use burn::module::ParamId;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// What all ranks of a job must have in common: names and values.
pub(crate) type Job = Vec<(&'static str, String)>;

/// Compares the job with every rank's; names the first rank that differs from most.
pub(crate) fn agree_on_job(link: &mut dyn Link, job: &Job, timeout: Duration) -> Result<(), ExecuteError> {
    link.announce(Activity::Gathering);
    let own: Vec<(String, String)> = job.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    let table = gather(link, &own, timeout)?;
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
pub(crate) fn share_facts(
    link: &mut dyn Link,
    facts: Vec<StageFacts>,
    timeout: Duration,
) -> Result<Vec<StageFacts>, ExecuteError> {
    let own: Vec<SharedFacts> = facts.iter().map(SharedFacts::of).collect();
    let rank = link.rank();
    let table: Vec<Vec<SharedFacts>> = gather(link, &own, timeout)?;
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
pub(crate) fn obey_together(
    rank: &mut Rank,
    mut command: Command,
    clip_norm: Option<f64>,
    validate: Validate,
) -> Result<Vec<Answer>, ExecuteError> {
    if matches!(command, Command::Modules | Command::Engines) {
        // What cannot be told to another process: each gets its own.
        return Ok(vec![obey(rank, command, clip_norm, validate)?]);
    }
    let asking = match announce(rank, &command)? {
        Ok(asking) => asking,
        Err(apart) => return Ok(vec![apart]),
    };
    if let Command::Accumulate { began, .. } | Command::Evaluate { began, .. } = &mut command {
        // All ranks are here now: the nearest to one clock that processes have.
        *began = Instant::now();
    }
    let answer = match command {
        Command::Evaluate { shares, batch, began, .. } => {
            let (part, plan) = shares.of(rank.executor().grid().replica());
            Answer::Batch(rank.evaluate_for(plan, &batch, began, part, &asking)?)
        }
        command => obey(rank, command, clip_norm, validate)?,
    };
    let shared = share(rank, answer);
    rank.executor().link().announce(Activity::Idle);
    rank.told(shared)
}

/// Tells all ranks what this one was asked to do. Gives the ranks that ask for outputs, or an answer if they were not
/// all asked the same.
fn announce(rank: &mut Rank, command: &Command) -> Result<Result<BTreeSet<usize>, Answer>, ExecuteError> {
    let call: Result<(String, bool), String> = match command {
        Command::Refuse(message) => Err(message.clone()),
        command => Ok((name(command), matches!(command, Command::Evaluate { asks: true, .. }))),
    };
    let timeout = rank.executor().timeout();
    rank.executor().link().announce(Activity::Gathering);
    let gathered = gather(rank.executor().link(), &call, timeout);
    let table = rank.told(gathered)?;
    if let Some((rank, message)) = table.iter().enumerate().find_map(|(r, call)| Some((r, call.as_ref().err()?))) {
        return Ok(Err(Answer::Refused { rank, message: message.clone() }));
    }
    let (calls, asks): (Vec<String>, Vec<bool>) = table.into_iter().flatten().unzip();
    Ok(match odd_one(&calls) {
        Some((rank, most)) => Err(Answer::Apart { rank, theirs: calls[rank].clone(), others: most.clone() }),
        None => Ok(asks.iter().enumerate().filter_map(|(rank, &asks)| asks.then_some(rank)).collect()),
    })
}

/// A call with all that must be the same on every rank.
fn name(command: &Command) -> String {
    match command {
        Command::Accumulate { shares, batch, .. } | Command::Evaluate { shares, batch, .. } => {
            let what = command.name();
            format!("{what} of {} over {} samples in {} microbatches", shares.name(), batch.samples(), batch.len())
        }
        Command::Apply { learning_rate } => format!("{} at learning rate {learning_rate}", command.name()),
        Command::Offer { checkpoint, .. } => format!("{} ({})", command.name(), checkpoint.identity()),
        command => command.name().to_owned(),
    }
}

fn share(rank: &mut Rank, answer: Answer) -> Result<Vec<Answer>, ExecuteError> {
    match answer {
        Answer::Batch(outcome) => Ok(share_outcome(rank, outcome)?.into_iter().map(Answer::Batch).collect()),
        Answer::Saved(saved) => share_result(rank, saved, Answer::Saved),
        Answer::Exported(exported) => share_result(rank, exported, Answer::Exported),
        Answer::NamedWeights(stages) => Ok(vec![Answer::NamedWeights(share_named(rank, stages)?)]),
        Answer::Offered(used) => share_result(rank, used, Answer::Offered),
        Answer::Told(bytes) => {
            let timeout = rank.executor().timeout();
            let table = gather(rank.executor().link(), &bytes, timeout)?;
            Ok(table.into_iter().map(Answer::Told).collect())
        }
        Answer::Tensors(stages) => Ok(vec![Answer::Tensors(share_tensors(rank, stages)?)]),
        Answer::Links(links) => {
            let timeout = rank.executor().timeout();
            // `LinkOverride` leaves fields out of its text, so it goes as plain numbers.
            let numbers = |link: LinkOverride| (link.from, link.to, link.latency, link.bandwidth);
            let own: Vec<_> = links.into_iter().map(numbers).collect();
            let link = |(from, to, latency, bandwidth)| LinkOverride { from, to, latency, bandwidth };
            let table = gather(rank.executor().link(), &own, timeout)?;
            Ok(table.into_iter().map(|row| Answer::Links(row.into_iter().map(link).collect())).collect())
        }
        // The same on every rank already.
        answer => Ok(vec![answer]),
    }
}

fn share_outcome(rank: &mut Rank, outcome: BatchOutcome) -> Result<Vec<BatchOutcome>, ExecuteError> {
    let timeout = rank.executor().timeout();
    let table: Vec<SharedOutcome> = gather(rank.executor().link(), &SharedOutcome::of(&outcome), timeout)?;
    let (loss, observed, me) = (outcome.loss, outcome.observed.clone(), rank.executor().rank());
    let rows = table.into_iter().enumerate();
    let mut outcomes: Vec<BatchOutcome> =
        rows.map(|(holder, shared)| shared.outcome(holder, loss, observed.clone())).collect();
    if let Some(place) = outcomes.get_mut(me) {
        *place = outcome;
    }
    Ok(outcomes)
}

/// Every rank's result: this one's own error as it is, another's as what it said.
fn share_result<T: Clone + Serialize + DeserializeOwned>(
    rank: &mut Rank,
    own: Result<T, CheckpointError>,
    answer: fn(Result<T, CheckpointError>) -> Answer,
) -> Result<Vec<Answer>, ExecuteError> {
    let (timeout, me) = (rank.executor().timeout(), rank.executor().rank());
    let said = own.as_ref().map(T::clone).map_err(ToString::to_string);
    let table: Vec<Result<T, String>> = gather(rank.executor().link(), &said, timeout)?;
    let rows = table.into_iter().enumerate();
    let mut results: Vec<Result<T, CheckpointError>> =
        rows.map(|(rank, said)| said.map_err(|message| CheckpointError::Elsewhere { rank, message })).collect();
    if let Some(place) = results.get_mut(me) {
        *place = own;
    }
    Ok(results.into_iter().map(answer).collect())
}

/// Tensors of some stages.
type OfStages = Vec<(StageId, Vec<Option<AnyTensor>>)>;

fn share_tensors(rank: &mut Rank, stages: OfStages) -> Result<OfStages, ExecuteError> {
    let timeout = rank.executor().timeout();
    let own: Vec<(usize, usize)> = stages.iter().map(|(stage, _)| (stage.replica(), stage.index())).collect();
    let table: Vec<Vec<(usize, usize)>> = gather(rank.executor().link(), &own, timeout)?;
    let payloads = stages.into_iter().map(|(_, tensors)| tensors.into_payload()).collect();
    let spread = spread(rank, payloads, &table.iter().map(Vec::len).collect::<Vec<_>>())?;
    let me = rank.executor().rank();
    let all = table.into_iter().zip(spread).flat_map(|(stages, payloads)| stages.into_iter().zip(payloads));
    all.map(|(stage, payload)| {
        let stage = facts::stage(stage).unwrap_or(StageId::new(0));
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
        let place = rank.executor().grid().pipeline_rank_of(holder);
        let stage = rank.placement().stages_of(place).first().copied().unwrap_or(StageId::new(0));
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

/// What is told of a weight beside its values: its number, its path in the module, and its names.
type Told = (u64, String, Vec<String>);

/// Gives every rank the named weights of all stages.
fn share_named(
    rank: &mut Rank,
    stages: Vec<(StageId, Vec<NamedWeight>)>,
) -> Result<Vec<(StageId, Vec<NamedWeight>)>, ExecuteError> {
    let timeout = rank.executor().timeout();
    let said = |weight: &NamedWeight| -> Told { (weight.id.val(), weight.path.clone(), weight.names.clone()) };
    let own: Vec<Vec<_>> = stages.iter().map(|(_, weights)| weights.iter().map(said).collect()).collect();
    let table: Vec<Vec<Vec<Told>>> = gather(rank.executor().link(), &own, timeout)?;
    let values = |(stage, weights): (StageId, Vec<NamedWeight>)| {
        (stage, weights.into_iter().map(|weight| Some(weight.value)).collect())
    };
    let spread = share_tensors(rank, stages.into_iter().map(values).collect())?;
    let named = spread.into_iter().zip(table.into_iter().flatten()).map(|((stage, values), said)| {
        let weight = |((id, path, names), value): (Told, Option<AnyTensor>)| {
            Some(NamedWeight { id: ParamId::from(id), path, names, value: value? })
        };
        (stage, said.into_iter().zip(values).filter_map(weight).collect())
    });
    Ok(named.collect())
}

/// Gives every rank the values of all ranks.
pub(crate) fn gather<T: Serialize + DeserializeOwned>(
    link: &mut dyn Link,
    own: &T,
    timeout: Duration,
) -> Result<Vec<T>, ExecuteError> {
    let rank = link.rank();
    link::gather(link, own, Instant::now() + timeout).map_err(|source| failed(rank, source))
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
