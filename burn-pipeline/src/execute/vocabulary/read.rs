//! Reads tensors from payloads and from shards of a vocabulary-parallel layer.

use crate::execute::error::ExecuteError;
use crate::payload::{AnyTensor, Payload, PayloadSpec};
use crate::stage::StageError;
use crate::vocabulary::ids_of;
use burn::module::ParamId;
use burn::tensor::{Int, Shape, Tensor};
use burn_pipeline_plan::plan::MicrobatchTask;

/// The rows and the width of a tensor of this shape as a matrix.
pub(super) fn as_matrix(shape: &Shape) -> [usize; 2] {
    let width = shape.to_vec().last().copied().unwrap_or(1);
    [shape.num_elements() / width.max(1), width]
}

/// Reads the tensors of a message as matrices.
pub(super) fn matrices(payload: &Payload) -> Result<Vec<Tensor<2>>, StageError> {
    let matrix = |tensor: &AnyTensor| tensor.clone().into_tensor::<2, burn::tensor::Float>();
    let read: Result<Vec<Tensor<2>>, _> = payload.tensors().map(matrix).collect();
    read.map_err(|_| StageError::Unsupported("a rank sent other tensors than those of its piece".to_owned()))
}

/// The parameter of a shard.
pub(super) fn piece(weights: Vec<(ParamId, AnyTensor)>) -> Result<(ParamId, Tensor<2>), StageError> {
    let weight = weights.into_iter().next().and_then(|(id, weight)| Some((id, weight.into_tensor::<2, _>().ok()?)));
    weight.ok_or_else(|| StageError::Unsupported("a piece of the vocabulary has lost its weight".to_owned()))
}

/// Reads the only tensor of a payload, which must be of floats.
pub(super) fn one_float(payload: &Payload) -> Result<AnyTensor, StageError> {
    let mut tensors = payload.tensors();
    match (tensors.next(), tensors.next()) {
        (Some(tensor), None) if tensor.dtype().is_float() => Ok(tensor.clone()),
        _ => {
            let got = PayloadSpec::of_payload(payload);
            let reason = format!(
                "a vocabulary-parallel layer reads one float tensor, but got {got}; \
                 have the last stage return only hidden states"
            );
            Err(StageError::Unsupported(reason))
        }
    }
}

/// If the operation panicked because an id is not a word of the vocabulary, names that id: devices that refuse an
/// id do not name it. Only then are ids read from the device.
pub(super) fn id_named(error: ExecuteError, task: MicrobatchTask, ids: &Tensor<1, Int>, words: usize) -> ExecuteError {
    let ExecuteError::Panic { rank, .. } = error else { return error };
    // The code panicked before it knew the number of words.
    if words == 0 {
        return error;
    }
    let read = ids.clone().try_into_data().ok();
    let is_word = |id: i64| usize::try_from(id).is_ok_and(|id| id < words);
    match read.and_then(|ids| ids.iter::<i64>().find(|&id| !is_word(id))) {
        Some(id) => {
            let (stage, microbatch, source) = (task.stage(), task.microbatch(), StageError::NoWord { id, words });
            ExecuteError::Stage { rank, stage, microbatch, op: task.op(), source }
        }
        None => error,
    }
}

/// Reads the ids of a payload, flattened.
pub(super) fn ids(payload: &Payload) -> Result<Tensor<1, Int>, StageError> {
    let ids = ids_of(payload).map_err(StageError::Input)?;
    let elements = ids.shape().num_elements();
    Ok(Tensor::from_dispatch(ids.clone().reshape(Shape::new([elements])).into_dispatch()))
}
