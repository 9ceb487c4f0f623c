//! The outputs of an evaluation, on the ranks that ask for them.
//!
//! The rank of a route's last stage has them. All ranks go through the microbatches in the same order, and the one
//! that has an output sends it to each asking rank in turn: what two ranks say to each other comes in the order in
//! which both expect it, so that no rank waits for one that waits for it.

use crate::execute::{ExecuteError, Executor};
use crate::link::{Direction, Header, Message};
use crate::plan::{Plan, Stage};
use crate::stage::Payload;
use std::collections::{BTreeMap, BTreeSet};

/// Takes the outputs that this rank has; gives all outputs where this rank asks, else none.
pub(super) fn deliver(
    executor: &mut Executor,
    plan: &Plan,
    outputs: Vec<(usize, Payload)>,
    asking: &BTreeSet<usize>,
) -> Result<Vec<(usize, Payload)>, ExecuteError> {
    let (rank, placement) = (executor.rank(), plan.placement());
    let failed = |source| ExecuteError::Link { rank, task: None, source };
    let mut here: BTreeMap<usize, Payload> = outputs.into_iter().collect();
    for (route, &microbatches) in plan.microbatches().iter().enumerate() {
        let last = Stage::in_replica(route, placement.stages() - 1);
        let from = placement.rank_of(last);
        for microbatch in 0..microbatches {
            let sample = plan.sample(last, microbatch);
            let header = Header { stage: last, microbatch, direction: Direction::Output };
            for &to in asking.iter().filter(|&&to| to != from) {
                let deadline = executor.deadline();
                if from == rank {
                    let Some(payload) = here.get(&sample).cloned() else { continue };
                    executor.link().send(to, Message { header, payload }, deadline).map_err(failed)?;
                } else if to == rank {
                    here.insert(sample, executor.link().receive(from, header, deadline).map_err(failed)?);
                }
            }
        }
    }
    Ok(if asking.contains(&rank) { here.into_iter().collect() } else { Vec::new() })
}
