//! Tensors out of the payloads and pieces of a spread vocabulary.

use crate::execute::error::ExecuteError;
use crate::plan::MicrobatchTask;
use crate::stage::{AnyTensor, Payload, PayloadSpec, StageError};
use crate::vocabulary::is_ids;
use burn::module::ParamId;
use burn::tensor::{Int, Shape, Tensor};

/// The rows and the width of what has this shape, taken as a matrix.
pub(super) fn as_matrix(shape: &Shape) -> [usize; 2] {
    let width = shape.to_vec().last().copied().unwrap_or(1);
    [shape.num_elements() / width.max(1), width]
}

/// Tensors of rank 2, out of a message's list.
pub(super) fn matrices(payload: &Payload) -> Result<Vec<Tensor<2>>, StageError> {
    let matrix = |tensor: &AnyTensor| tensor.clone().into_tensor::<2, burn::tensor::Float>();
    let read: Result<Vec<Tensor<2>>, _> = payload.tensors().map(matrix).collect();
    read.map_err(|_| StageError::Unsupported("a rank sent other tensors than those of its piece".to_owned()))
}

/// The parameter of a piece.
pub(super) fn piece(weights: Vec<(ParamId, AnyTensor)>) -> Result<(ParamId, Tensor<2>), StageError> {
    let weight = weights.into_iter().next().and_then(|(id, weight)| Some((id, weight.into_tensor::<2, _>().ok()?)));
    weight.ok_or_else(|| StageError::Unsupported("a piece of the vocabulary has lost its weight".to_owned()))
}

/// The only tensor of a payload, of floats.
pub(super) fn one_float(payload: &Payload) -> Result<AnyTensor, StageError> {
    let mut tensors = payload.tensors();
    match (tensors.next(), tensors.next()) {
        (Some(tensor), None) if tensor.dtype().is_float() => Ok(tensor.clone()),
        _ => {
            let got = PayloadSpec::of_payload(payload);
            let reason = format!(
                "a vocabulary that is spread reads one float tensor, and got {got}; have the last stage return hidden states alone"
            );
            Err(StageError::Unsupported(reason))
        }
    }
}

/// Says of an operation whose code panicked which of its ids is no word of the vocabulary, if one is: devices that refuse it do not say
/// which. Only then are ids read from the device.
pub(super) fn id_named(error: ExecuteError, task: MicrobatchTask, ids: &Tensor<1, Int>, words: usize) -> ExecuteError {
    let ExecuteError::Panic { rank, .. } = error else { return error };
    // The code panicked before its words were known.
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

/// The ids of a payload, in one row.
pub(super) fn ids(payload: &Payload) -> Result<Tensor<1, Int>, StageError> {
    is_ids(payload.clone()).map_err(StageError::Input)?;
    let ids = payload.tensors().next().cloned();
    let flat = ids.map(|ids| {
        let elements = ids.shape().num_elements();
        Tensor::<1, Int>::from_dispatch(ids.reshape(Shape::new([elements])).into_dispatch())
    });
    flat.ok_or_else(|| StageError::Unsupported("there are no ids".to_owned()))
}
