//! The parameters that the replicas of a stage exchange, and how a module gets new values.

use super::pieces::{join, length};
use crate::payload::AnyTensor;
use crate::ranks::TensorList;
use crate::stage::{ErasedStage, NamedParameter};
use burn::module::ParamId;
use burn::tensor::{DType, Shape};
use std::collections::{BTreeSet, HashMap, HashSet};

/// A parameter that the replicas of a stage exchange.
#[derive(Clone, Debug)]
pub(super) struct Parameter {
    pub(super) id: ParamId,
    pub(super) shape: Vec<usize>,
    /// The type of its master and of its gradient's sum.
    pub(super) dtype: DType,
    /// The type in which forwards use it.
    pub(super) computed: DType,
}

/// Values of parameters; they differ where forwards use rounded copies of masters
/// ([`Precision`](crate::stage::Precision)).
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Values {
    /// What forwards use.
    Computed,
    /// What the optimizer steps, and checkpoints have.
    Stepped,
}

impl Values {
    /// The values of a module.
    pub(super) fn of(self, held: &dyn ErasedStage) -> Vec<(ParamId, AnyTensor)> {
        if self == Values::Computed { held.computed() } else { held.weights() }
    }

    /// Gives a module these values for these parameters; other parameters keep theirs.
    pub(super) fn set(self, held: &mut dyn ErasedStage, parameters: &[Parameter], values: Vec<AnyTensor>) {
        let values: HashMap<ParamId, AnyTensor> = parameters.iter().map(|p| p.id).zip(values).collect();
        let weights = self.of(held).into_iter();
        let weights = weights.map(|(id, weight)| values.get(&id).cloned().unwrap_or(weight)).collect();
        match self {
            Values::Computed => held.set_computed(weights),
            Values::Stepped => held.set_weights(weights),
        }
    }

    /// The element type of a parameter's value.
    pub(super) fn dtype(self, parameter: &Parameter) -> DType {
        if self == Values::Computed { parameter.computed } else { parameter.dtype }
    }
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
    let computed: HashMap<ParamId, DType> = held.computed().into_iter().map(|(id, copy)| (id, copy.dtype())).collect();
    let parameters =
        held.named_parameters().into_iter().filter(|parameter| parameter.trainable && !spread.contains(&parameter.id));
    let parameters = parameters.filter(|parameter| seen.insert(parameter.id.val()));
    let of = |NamedParameter { id, shape, dtype, .. }: NamedParameter| {
        let computed = computed.get(&id).copied().unwrap_or(dtype);
        Parameter { id, shape, dtype, computed }
    };
    parameters.map(of).collect()
}

/// Joins the replicas' lists of pieces into whole tensors, in the order of replicas. A parameter without a piece on
/// some replica has none.
pub(super) fn join_lists(mut lists: Vec<TensorList>, parameters: &[Parameter]) -> TensorList {
    let whole = |(position, parameter): (usize, &Parameter)| {
        let pieces: Option<Vec<AnyTensor>> = lists.iter_mut().map(|list| list[position].take()).collect();
        pieces.map(|pieces| join(pieces, &parameter.shape))
    };
    parameters.iter().enumerate().map(whole).collect()
}

/// Checks that a list has a piece of each of these parameters' values, or of gradients in their type, or none.
///
/// # Errors
/// Returns a description of the first difference.
pub(super) fn fits(list: &TensorList, parameters: &[Parameter], values: Values, replicas: usize) -> Result<(), String> {
    if list.len() != parameters.len() {
        return Err(format!("{} tensors came, {} are held", list.len(), parameters.len()));
    }
    let pieces = list.iter().zip(parameters).filter_map(|(piece, parameter)| Some((piece.as_ref()?, parameter)));
    for (piece, parameter) in pieces {
        let (came, of) = (piece.shape().to_vec(), piece.dtype());
        let (length, dtype) = (parameter.piece_length(replicas), values.dtype(parameter));
        if came != [length] || of != dtype {
            return Err(format!("{came:?} elements of {of:?} came, {length} of {dtype:?} are expected"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{Device, Tensor};

    #[test]
    fn pieces_of_other_parameters_are_refused() {
        let list = vec![Some(AnyTensor::new(Tensor::<1>::zeros([4], &Device::flex()))), None];
        let parameter = |elements, dtype| Parameter {
            id: ParamId::from(elements as u64),
            shape: vec![elements],
            dtype,
            computed: dtype,
        };
        let refused = |parameters: &[Parameter]| fits(&list, parameters, Values::Stepped, 2).unwrap_err();
        let other = parameter(2, DType::F32);
        assert_eq!(refused(&[parameter(8, DType::F32)]), "2 tensors came, 1 are held");
        let longer = refused(&[parameter(10, DType::F32), other.clone()]);
        assert_eq!(longer, "[4] elements of F32 came, 5 of F32 are expected");
        assert!(refused(&[parameter(8, DType::F64), other.clone()]).contains("4 of F64 are expected"));
        assert!(fits(&list, &[parameter(7, DType::F32), other.clone()], Values::Stepped, 2).is_ok());
        let square = vec![Some(AnyTensor::new(Tensor::<2>::zeros([2, 2], &Device::flex()))), None];
        assert!(
            fits(&square, &[parameter(7, DType::F32), other], Values::Stepped, 2)
                .unwrap_err()
                .contains("[2, 2] elements")
        );
    }
}
