//! Sends the outputs of an evaluation to the ranks that want them.
//!
//! Guarantees: outputs are sent to no other rank, and ranks cannot deadlock.
//!
//! 1. The rank of a route's last stage has the outputs; with data-parallel replicas, each has those of its part. All
//!    ranks gather which rank has which outputs, and which ranks want them.
//! 2. All go through the microbatches in the same order: the rank that has an output sends it to each rank that wants
//!    it, in turn. So both ends of every pair use the same order.

use super::rank::Rank;
use crate::execute::ExecuteError;
use crate::link::{Header, Message, MessageKind, gather};
use crate::payload::Payload;
use crate::plan::StageId;
use std::collections::BTreeMap;

/// Takes the outputs of this rank, by microbatch. Returns those of all ranks if this one wants them, otherwise none.
pub(crate) fn deliver(
    rank: &mut Rank,
    outputs: Vec<(usize, Payload)>,
    wanted: bool,
) -> Result<Vec<(usize, Payload)>, ExecuteError> {
    let me = rank.number();
    let stage = StageId::new(rank.placement.stages() - 1);
    let mut here: BTreeMap<usize, Payload> = outputs.into_iter().collect();
    let own: (bool, Vec<usize>) = (wanted, here.keys().copied().collect());
    let deadline = rank.executor.deadline();
    let table = gather(rank.executor.link(), &own, deadline).map_err(|source| rank.link_error(source))?;
    let wanting: Vec<usize> = (0..table.len()).filter(|&rank| table[rank].0).collect();
    let holders = table.into_iter().enumerate().flat_map(|(rank, (_, row))| row.into_iter().map(move |i| (i, rank)));
    for (microbatch, from) in holders.collect::<BTreeMap<usize, usize>>() {
        let header = Header { stage, microbatch, kind: MessageKind::Output };
        for &to in wanting.iter().filter(|&&to| to != from) {
            let deadline = rank.executor.deadline();
            let link = rank.executor.link();
            if from == me {
                let Some(payload) = here.get(&microbatch).cloned() else { continue };
                link.send(to, Message { header, payload }, deadline).map_err(|source| rank.link_error(source))?;
            } else if to == me {
                let payload = link.receive(from, header, deadline).map_err(|source| rank.link_error(source))?;
                here.insert(microbatch, payload);
            }
        }
    }
    Ok(if wanted { here.into_iter().collect() } else { Vec::new() })
}
