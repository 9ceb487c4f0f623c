//! Exchanges replies between ranks in processes: values, results, and tensors.

use super::command::Command;
use crate::execute::ExecuteError;
use crate::link::{Link, MessageKind, gather};
use crate::payload::{Boundary, BoundaryError};
use crate::train::facts::StageFacts;
use crate::train::step::{Rank, deliver};
use burn_pipeline_plan::plan::{Placement, StageId};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Display;
use std::time::{Duration, Instant};

/// Gives every rank the values of all ranks, in rank order.
pub(crate) fn gather_all<T: Serialize + DeserializeOwned>(
    link: &mut dyn Link,
    own: &T,
    timeout: Duration,
) -> Result<Vec<T>, ExecuteError> {
    let rank = link.rank();
    gather(link, own, Instant::now() + timeout).map_err(|source| ExecuteError::Link { rank, task: None, source })
}

/// Gives every process the values of all processes: the reply of each rank is its process's value.
pub(crate) struct Exchange<T>(pub(crate) T);

impl<T: Clone + Serialize + DeserializeOwned + Send + Sync + 'static> Command for Exchange<T> {
    type Reply = T;
    const NAME: &'static str = "exchanging values";

    fn run(&self, _: &mut Rank, _: Instant) -> Result<T, ExecuteError> {
        Ok(self.0.clone())
    }

    fn exchange(&self, rank: &mut Rank, own: T) -> Result<Vec<T>, ExecuteError> {
        rank.executor.gather(&own)
    }
}

/// Gives every rank the results of all ranks: its own error unchanged, errors of others made from their rank and
/// message.
pub(crate) fn gather_results<T: Clone + Serialize + DeserializeOwned, E: Display>(
    rank: &mut Rank,
    own: Result<T, E>,
    elsewhere: fn(usize, String) -> E,
) -> Result<Vec<Result<T, E>>, ExecuteError> {
    let me = rank.number();
    let said = own.as_ref().map(T::clone).map_err(ToString::to_string);
    let table = rank.executor.gather(&said)?.into_iter().enumerate();
    let mut results: Vec<Result<T, E>> =
        table.map(|(rank, said)| said.map_err(|message| elsewhere(rank, message))).collect();
    if let Some(place) = results.get_mut(me) {
        *place = own;
    }
    Ok(results)
}

/// Gives every rank the facts of all ranks' stages: its own unchanged, others without what is not sent.
pub(crate) fn exchange_facts(
    link: &mut dyn Link,
    own: Vec<StageFacts>,
    placement: &Placement,
    timeout: Duration,
) -> Result<Vec<StageFacts>, ExecuteError> {
    let table: Vec<Vec<StageFacts>> = gather_all(link, &own, timeout)?;
    for (peer, row) in table.iter().enumerate() {
        let stages = row.iter().filter(|facts| facts.piece.is_none()).map(|facts| facts.stage);
        ExecuteError::refuse_unknown(link.rank(), peer, placement, stages)?;
    }
    let rows = table.into_iter().enumerate().filter(|(rank, _)| *rank != link.rank());
    Ok(own.into_iter().chain(rows.flat_map(|(_, row)| row)).collect())
}

/// Gives every rank the tensors of all stages, in model order.
pub(crate) fn gather_tensors<T: Boundary>(
    rank: &mut Rank,
    stages: Vec<(StageId, T)>,
) -> Result<Vec<(StageId, T)>, ExecuteError> {
    let me = rank.number();
    let own = stages.into_iter().map(|(stage, tensors)| ((stage, 0), tensors.into_payload())).collect();
    let all = deliver(rank, own, true, |index| MessageKind::Tensors { index })?;
    // A rank that leaves its program after this call may end before its last tensors are written.
    rank.executor.gather(&())?;
    let tensors = |((stage, _), payload)| {
        let decoded = |error: BoundaryError| ExecuteError::Decode { rank: me, message: error.to_string() };
        Ok((stage, T::from_payload(payload).map_err(decoded)?))
    };
    all.into_iter().map(tensors).collect()
}
