//! Sends what ranks have of stages to the ranks that want it: outputs, gradients of the batch, or weights.
//!
//! Guarantees: it is sent to no other rank, and ranks cannot deadlock.
//!
//! 1. The rank of a route's last stage has the outputs; with data-parallel replicas, each has those of its part. The
//!    rank of a stage has the stage's gradients of the batch, and its weights. All ranks gather which rank has what,
//!    and which ranks want it.
//! 2. All go through the stages and microbatches in the same order: the rank that has a payload sends it to each rank
//!    that wants it, in turn. So both ends of every pair use the same order.

use super::rank::Rank;
use crate::execute::ExecuteError;
use crate::link::{Header, MessageKind};
use crate::payload::Payload;
use burn_pipeline_plan::plan::StageId;
use std::collections::BTreeMap;

/// What a rank computed or holds, by the stage and the microbatch; weights are of microbatch 0.
type Computed = Vec<((StageId, usize), Payload)>;

/// Takes the outputs of this rank, by microbatch. Returns those of all ranks if this one wants them, otherwise none.
pub(crate) fn deliver_outputs(
    rank: &mut Rank,
    outputs: Vec<(usize, Payload)>,
    wanted: bool,
) -> Result<Vec<(usize, Payload)>, ExecuteError> {
    let stage = StageId::new(rank.placement.stages() - 1);
    let computed = outputs.into_iter().map(|(microbatch, output)| ((stage, microbatch), output)).collect();
    let all = deliver(rank, computed, wanted, |_| MessageKind::Output)?;
    Ok(all.into_iter().map(|((_, microbatch), output)| (microbatch, output)).collect())
}

/// Takes this rank's gradients of the batch. Returns those of all ranks if this one has a copy of the first stage,
/// otherwise none.
pub(crate) fn deliver_of_batch(rank: &mut Rank, own: Computed) -> Result<Computed, ExecuteError> {
    let first = rank.executor.stages().keys().any(|stage| stage.index() == 0);
    deliver(rank, own, first, |_| MessageKind::Output)
}

/// Returns what all ranks have, by stage and microbatch, if this one wants it, otherwise nothing. Callers gather
/// afterwards, so no rank leaves before its payloads are received.
/// `kind` is that of a message, by its position among all.
pub(crate) fn deliver(
    rank: &mut Rank,
    computed: Computed,
    wanted: bool,
    kind: fn(usize) -> MessageKind,
) -> Result<Computed, ExecuteError> {
    let me = rank.number();
    let mut here: BTreeMap<(StageId, usize), Payload> = computed.into_iter().collect();
    let own: (bool, Vec<(StageId, usize)>) = (wanted, here.keys().copied().collect());
    let table = rank.executor.gather(&own)?;
    let wanting: Vec<usize> = (0..table.len()).filter(|&rank| table[rank].0).collect();
    let holders = table.into_iter().enumerate().flat_map(|(rank, (_, row))| row.into_iter().map(move |i| (i, rank)));
    let holders: BTreeMap<(StageId, usize), usize> = holders.collect();
    for (index, ((stage, microbatch), from)) in holders.into_iter().enumerate() {
        let header = Header { stage, microbatch, kind: kind(index) };
        for &to in wanting.iter().filter(|&&to| to != from) {
            if from == me {
                let Some(payload) = here.get(&(stage, microbatch)).cloned() else { continue };
                rank.executor.send_to(to, header, payload)?;
            } else if to == me {
                here.insert((stage, microbatch), rank.executor.receive_from(from, header)?);
            }
        }
    }
    Ok(if wanted { here.into_iter().collect() } else { Vec::new() })
}
