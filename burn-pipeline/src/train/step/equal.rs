//! Makes all copies of a stage equal: data-parallel replicas, and both routes of a bidirectional placement.
//!
//! Guarantees: afterwards copies hold the first one's parameters and buffers, bit for bit. The members of a
//! tensor-parallel group keep integers and truth values of their own, and so do replicas over which weights are cut:
//! these may say which piece a rank holds.
//!
//! 1. Floating-point parameters go from rank to rank as payloads.
//! 2. Integers and truth values, which not every link sends, go through a gather.

use super::replicas::copy_weights;
use crate::data_parallel::ReplicaGroup;
use crate::execute::{ExecuteError, Executor};
use crate::payload::AnyTensor;
use burn::module::ParamId;
use burn::tensor::TensorData;
use burn_pipeline_plan::plan::Placement;
use std::collections::HashMap;

/// A stage's index, the member of its group, and the values of each of its buffers.
type Buffers = (usize, usize, Vec<TensorData>);

/// Gives all copies of every stage the first one's values. All ranks call it.
pub(super) fn equalize_copies(executor: &mut Executor, placement: &Placement) -> Result<(), ExecuteError> {
    copy_weights(executor, placement)?;
    executor.exchanging(None, ReplicaGroup::broadcast_weights)?;
    copy_buffers(executor, placement)
}

fn copy_buffers(executor: &mut Executor, placement: &Placement) -> Result<(), ExecuteError> {
    let (rank, replica, groups) = (executor.rank(), executor.grid().replica(), executor.groups().clone());
    if executor.grid().replicas() == 1 && placement.routes() == 1 {
        return Ok(());
    }
    let (member, failed) = (groups.members.member(), |message| ExecuteError::Device { rank, message });
    let mut own: Vec<Buffers> = Vec::new();
    for (stage, held) in executor.stages().iter().filter(|(stage, _)| placement.contains(**stage)) {
        if (replica, stage.route()) == (0, 0) {
            let values: Result<Vec<_>, String> = held.buffers().iter().map(|(_, value)| value.to_data()).collect();
            own.push((stage.index(), member, values.map_err(failed)?));
        }
    }
    let rows = executor.gather(&own)?.into_iter().flatten();
    let first: HashMap<(usize, usize), Vec<_>> = rows.map(|(index, member, of)| ((index, member), of)).collect();
    for (&stage, held) in executor.stages().iter_mut() {
        let (own, Some(values)) = (held.buffers(), first.get(&(stage.index(), member))) else { continue };
        if (replica, stage.route()) == (0, 0) || replica > 0 && held.options().spread {
            continue;
        }
        if own.len() != values.len() {
            let counts = format!("{} and {}", values.len(), own.len());
            return Err(failed(format!(
                "copies of stage {stage} hold {counts} parameters of integers or truth values"
            )));
        }
        let buffers = own.into_iter().zip(values);
        let values: HashMap<ParamId, AnyTensor> =
            buffers.map(|((id, own), data)| (id, AnyTensor::from_data(data.clone(), &own.device()))).collect();
        if !values.is_empty() {
            held.replace(&values).map_err(|source| ExecuteError::Module { rank, stage, source })?;
        }
    }
    Ok(())
}
