//! The parameters that the replicas of a stage exchange, and how a module gets new values.

use super::pieces::{join, length};
use crate::payload::AnyTensor;
use crate::stage::{ErasedStage, NamedParameter};
use burn::module::ParamId;
use burn::tensor::{DType, Shape};
use std::collections::{BTreeSet, HashMap, HashSet};

/// One tensor per parameter of a stage; `None` if a parameter has none.
pub(super) type Tensors = Vec<Option<AnyTensor>>;

/// A parameter that the replicas of a stage exchange.
#[derive(Clone, Debug)]
pub(super) struct Parameter {
    pub(super) id: ParamId,
    pub(super) shape: Vec<usize>,
    pub(super) dtype: DType,
}

impl Parameter {
    /// The length of each replica's piece.
    pub(super) fn piece_length(&self, replicas: usize) -> usize {
        length(self.shape.iter().product(), replicas)
    }

    /// Gives a piece the parameter's number of dimensions, with all elements along the last one, so that a module
    /// accepts it in the parameter's place.
    pub(super) fn in_rank(&self, piece: AnyTensor) -> AnyTensor {
        let mut shape = vec![1; self.shape.len().max(1)];
        shape.last_mut().into_iter().for_each(|last| *last = piece.shape().num_elements());
        piece.reshape(Shape::from(shape))
    }
}

/// The trained parameters of a stage that replicas exchange, in visiting order, each once, without those in
/// `spread`.
pub(super) fn trained(held: &dyn ErasedStage, spread: &HashSet<ParamId>) -> Vec<Parameter> {
    // A module may hold one parameter in two places.
    let mut seen = BTreeSet::new();
    let parameters =
        held.named_parameters().into_iter().filter(|parameter| parameter.trainable && !spread.contains(&parameter.id));
    let parameters = parameters.filter(|parameter| seen.insert(parameter.id.val()));
    parameters.map(|NamedParameter { id, shape, dtype, .. }| Parameter { id, shape, dtype }).collect()
}

/// Gives a module these values for these parameters; other parameters keep theirs.
pub(super) fn set_values(held: &mut dyn ErasedStage, parameters: &[Parameter], values: Vec<AnyTensor>) {
    let values: HashMap<ParamId, AnyTensor> = parameters.iter().map(|p| p.id).zip(values).collect();
    let weights = held.weights().into_iter();
    let weights = weights.map(|(id, weight)| values.get(&id).cloned().unwrap_or(weight)).collect();
    held.set_weights(weights);
}

/// Adds two lists, parameter by parameter. If neither list has a tensor, the sum has none.
pub(super) fn add(sum: Tensors, list: Tensors) -> Tensors {
    let add = |pair| match pair {
        (Some(a), Some(b)) => Some(AnyTensor::plus(a, b)),
        (one, other) => one.or(other),
    };
    sum.into_iter().zip(list).map(add).collect()
}

/// Joins the replicas' lists of pieces into whole tensors, in the order of replicas. A parameter without a piece on
/// some replica has none.
pub(super) fn join_lists(mut lists: Vec<Tensors>, parameters: &[Parameter]) -> Tensors {
    let whole = |(position, parameter): (usize, &Parameter)| {
        let pieces: Option<Vec<AnyTensor>> = lists.iter_mut().map(|list| list[position].take()).collect();
        pieces.map(|pieces| join(pieces, &parameter.shape))
    };
    parameters.iter().enumerate().map(whole).collect()
}
