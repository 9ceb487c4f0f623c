//! The outputs of an evaluation, on the ranks that ask for them.
//!
//! The rank of a route's last stage has them; of data-parallel replicas, each those of its part. All ranks tell each
//! other what they have, and then go through the microbatches in the same order: who has an output sends it to each
//! asking rank in turn. What two ranks say to each other comes in the order in which both expect it, so that no rank
//! waits for one that waits for it.

use crate::execute::{ExecuteError, Executor};
use crate::link::{Direction, Header, Message, gather};
use crate::plan::StageId;
use crate::stage::Payload;
use std::collections::{BTreeMap, BTreeSet};

/// Takes the outputs that this rank has; gives all outputs where this rank asks, else none.
pub(crate) fn deliver(
    executor: &mut Executor,
    last: StageId,
    outputs: Vec<(usize, Payload)>,
    asking: &BTreeSet<usize>,
) -> Result<Vec<(usize, Payload)>, ExecuteError> {
    let (rank, deadline) = (executor.rank(), executor.deadline());
    let failed = |source| ExecuteError::Link { rank, task: None, source };
    let mut here: BTreeMap<usize, Payload> = outputs.into_iter().collect();
    let own: Vec<usize> = here.keys().copied().collect();
    let table = gather(executor.link(), &own, deadline).map_err(failed)?;
    let holders = table.iter().enumerate().flat_map(|(rank, row)| row.iter().map(move |&sample| (sample, rank)));
    let holders: BTreeMap<usize, usize> = holders.collect();
    for (microbatch, from) in holders {
        let header = Header { stage: last, microbatch, direction: Direction::Output };
        for &to in asking.iter().filter(|&&to| to != from) {
            let deadline = executor.deadline();
            if from == rank {
                let Some(payload) = here.get(&microbatch).cloned() else { continue };
                executor.link().send(to, Message { header, payload }, deadline).map_err(failed)?;
            } else if to == rank {
                here.insert(microbatch, executor.link().receive(from, header, deadline).map_err(failed)?);
            }
        }
    }
    Ok(if asking.contains(&rank) { here.into_iter().collect() } else { Vec::new() })
}
