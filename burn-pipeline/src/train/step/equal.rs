//! Makes all copies of a stage equal: data-parallel replicas, and both routes of a bidirectional placement.
//!
//! Guarantees: afterwards copies hold the first one's parameters and buffers, bit for bit. The members of a
//! tensor-parallel group keep integers and truth values of their own, since these may say which piece a member holds.
//!
//! 1. Floating-point parameters go from rank to rank as payloads.
//! 2. Integers and truth values, which not every link sends, go through a gather.

use super::replicas::copy_weights;
use crate::execute::{ExecuteError, Executor};
use crate::payload::AnyTensor;
use burn::module::ParamId;
use burn::tensor::{DType, TensorData};
use burn_pipeline_plan::plan::{Placement, StageId};
use std::collections::HashMap;

/// A stage's index, the member of its group, and the element type, shape and bytes of each of its buffers.
type Buffers = (usize, usize, Vec<(DType, Vec<usize>, Vec<u8>)>);

/// Gives all copies of every stage the first one's values. All ranks call it.
pub(super) fn equalize_copies(executor: &mut Executor, placement: &Placement) -> Result<(), ExecuteError> {
    copy_weights(executor, placement)?;
    executor.broadcast_weights()?;
    let (rank, replica, member) = (executor.rank(), executor.grid().replica(), executor.groups().members.member());
    if executor.grid().replicas() == 1 && placement.routes() == 1 {
        return Ok(());
    }
    let is_first = |stage: StageId| replica == 0 && stage.route() == 0;
    let failed = |message| ExecuteError::Device { rank, message };
    let mut own: Vec<Buffers> = Vec::new();
    for (stage, held) in executor.stages().iter().filter(|(stage, _)| placement.contains(**stage)) {
        let values: Result<Vec<_>, String> = match is_first(*stage) {
            true => held.buffers().into_iter().map(|(_, value)| packed(&value)).collect(),
            false => Ok(Vec::new()),
        };
        own.push((stage.index(), member, values.map_err(failed)?));
    }
    let mut first: HashMap<(usize, usize), Vec<_>> = HashMap::new();
    for (index, member, values) in executor.gather(&own)?.into_iter().flatten().filter(|row| !row.2.is_empty()) {
        first.insert((index, member), values);
    }
    for (stage, held) in executor.stages().iter_mut().filter(|(stage, _)| !is_first(**stage)) {
        let values = first.get(&(stage.index(), member)).map(Vec::as_slice).unwrap_or_default();
        let buffers = held.buffers().into_iter().zip(values);
        let values: HashMap<ParamId, AnyTensor> =
            buffers.map(|((id, own), (dtype, shape, bytes))| (id, unpacked(*dtype, shape, bytes, &own))).collect();
        held.replace(&values).map_err(|source| ExecuteError::Module { rank, stage: *stage, source })?;
    }
    Ok(())
}

fn packed(value: &AnyTensor) -> Result<(DType, Vec<usize>, Vec<u8>), String> {
    let data = value.to_data()?;
    Ok((data.dtype(), data.shape().to_vec(), data.as_bytes().to_vec()))
}

fn unpacked(dtype: DType, shape: &[usize], bytes: &[u8], like: &AnyTensor) -> AnyTensor {
    AnyTensor::from_data_exact(TensorData::from_bytes_vec(bytes.to_vec(), shape.to_vec(), dtype), &like.device())
}
