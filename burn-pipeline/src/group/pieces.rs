//! Tensors cut into one piece per replica, and lists of pieces as one buffer per element type.
//!
//! Guarantees: cutting and joining a tensor returns it bit for bit; so does packing and unpacking a list, absent
//! tensors included.
//!
//! A tensor is cut along its flat (row-major) order, padded with zeros so that all pieces have the same length.

use crate::payload::{AnyTensor, Payload, PayloadReader};
use burn::tensor::{DType, Shape};

/// The length of each of `parts` pieces of a tensor; at least one.
pub(super) fn length(elements: usize, parts: usize) -> usize {
    elements.div_ceil(parts).max(1)
}

/// Cuts a tensor into pieces with one dimension: views of its storage, unless it needs padding.
pub(super) fn cut(tensor: AnyTensor, parts: usize) -> Vec<AnyTensor> {
    let elements = tensor.shape().num_elements();
    let length = length(elements, parts);
    let padding = length * parts - elements;
    let flat = tensor.reshape(Shape::new([elements]));
    let flat = match padding {
        0 => flat,
        padding => {
            let zeros = flat.zeros(Shape::new([padding]));
            concatenate(vec![flat, zeros])
        }
    };
    (0..parts).map(|part| flat.clone().narrow(0, part * length, (part + 1) * length)).collect()
}

/// Joins pieces into the tensor of this shape from which they were cut.
pub(super) fn join(pieces: Vec<AnyTensor>, shape: &[usize]) -> AnyTensor {
    let (flat, elements) = (concatenate(pieces), shape.iter().product());
    let padded = flat.shape().num_elements() != elements;
    let flat = if padded { flat.narrow(0, 0, elements) } else { flat };
    flat.reshape(Shape::from(shape.to_vec()))
}

/// Concatenates at least one tensor with one dimension.
fn concatenate(mut tensors: Vec<AnyTensor>) -> AnyTensor {
    match tensors.len() {
        1 => tensors.swap_remove(0),
        // The callers never pass an empty list.
        _ => AnyTensor::cat(tensors, 0).unwrap_or_else(|| unreachable!("there is a tensor")),
    }
}

/// Element type and length of each piece of a list.
pub(super) type PieceSpecs = Vec<(DType, usize)>;

/// Packs a list of pieces as a message: which are present, and one buffer per element type.
pub(super) fn pack(pieces: Vec<Option<AnyTensor>>) -> Payload {
    let mut payload = Payload::default();
    let mut buffers: Vec<(DType, Vec<AnyTensor>)> = Vec::new();
    payload.push_tag(pieces.len());
    for piece in pieces {
        payload.push_tag(usize::from(piece.is_some()));
        let Some(piece) = piece else { continue };
        let dtype = piece.dtype();
        match buffers.iter_mut().find(|(of, _)| *of == dtype) {
            Some((_, buffer)) => buffer.push(piece),
            None => buffers.push((dtype, vec![piece])),
        }
    }
    buffers.into_iter().for_each(|(_, buffer)| payload.push_tensor(concatenate(buffer)));
    payload
}

/// Unpacks a list, whose pieces must have these specs.
///
/// # Errors
/// Returns a description of what arrived instead.
pub(super) fn unpack(payload: Payload, specs: &PieceSpecs) -> Result<Vec<Option<AnyTensor>>, String> {
    let mut reader = PayloadReader::new(payload);
    let mut tag = |limit| reader.tag(limit, "a list of pieces").map_err(|error| error.to_string());
    let count = tag(usize::MAX)?;
    if count != specs.len() {
        return Err(format!("{count} tensors arrived, this replica has {}", specs.len()));
    }
    let present: Vec<bool> = (0..count).map(|_| Ok(tag(2)? == 1)).collect::<Result<_, String>>()?;
    // Buffers come in the order in which their element types first occur.
    let mut lengths: Vec<(DType, usize)> = Vec::new();
    for &(dtype, length) in specs.iter().zip(&present).filter(|(_, present)| **present).map(|(spec, _)| spec) {
        match lengths.iter_mut().find(|(of, _)| *of == dtype) {
            Some((_, sum)) => *sum += length,
            None => lengths.push((dtype, length)),
        }
    }
    let mut buffers: Vec<(DType, AnyTensor, usize)> = Vec::new();
    for (dtype, length) in lengths {
        let buffer = reader.any_tensor().map_err(|error| error.to_string())?;
        let (came, of) = (buffer.shape().num_elements(), buffer.dtype());
        if (came, of) != (length, dtype) {
            return Err(format!("{came} elements of {of:?} arrived, {length} of {dtype:?} are expected"));
        }
        buffers.push((dtype, buffer, 0));
    }
    let mut next = |&(dtype, length): &(DType, usize)| {
        let (_, buffer, used) = buffers.iter_mut().find(|(of, ..)| *of == dtype)?;
        *used += length;
        Some(buffer.clone().narrow(0, *used - length, *used))
    };
    Ok(specs.iter().zip(present).map(|(spec, present)| if present { next(spec) } else { None }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{Device, TensorData};
    use proptest::prelude::{Strategy, any};
    use proptest::{prop_assert_eq, proptest};

    fn tensors() -> impl Strategy<Value = Vec<Option<(Vec<usize>, bool)>>> {
        let tensor = proptest::option::of((proptest::collection::vec(1usize..5, 1..4), any::<bool>()));
        proptest::collection::vec(tensor, 0..6)
    }

    fn make(number: usize, shape: &[usize], double: bool) -> AnyTensor {
        let count: usize = shape.iter().product();
        let values: Vec<f32> = (0..count).map(|i| (number * 100 + i) as f32).collect();
        let dtype = if double { DType::F64 } else { DType::F32 };
        let data = TensorData::new(values, shape.to_vec()).convert_dtype(dtype);
        AnyTensor::from_data_exact(data, &Device::flex())
    }

    proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]
        #[test]
        fn lists_come_out_as_they_went_in(list in tensors(), parts in 1usize..5) {
            let tensors: Vec<Option<AnyTensor>> = list.iter().enumerate()
                .map(|(i, tensor)| tensor.as_ref().map(|(shape, double)| make(i, shape, *double))).collect();
            let spec = |tensor: &Option<(Vec<usize>, bool)>| {
                let (shape, double) = tensor.clone().unwrap_or((vec![3], false));
                (if double { DType::F64 } else { DType::F32 }, length(shape.iter().product(), parts))
            };
            let specs: PieceSpecs = list.iter().map(spec).collect();
            let pieces: Vec<Option<Vec<AnyTensor>>> =
                tensors.iter().map(|tensor| tensor.clone().map(|tensor| cut(tensor, parts))).collect();
            let mut back: Vec<Vec<Option<AnyTensor>>> = Vec::new();
            for part in 0..parts {
                let own = pieces.iter().map(|pieces| pieces.as_ref().map(|pieces| pieces[part].clone())).collect();
                back.push(unpack(pack(own), &specs).unwrap());
            }
            for (place, tensor) in tensors.iter().enumerate() {
                let pieces: Option<Vec<AnyTensor>> = back.iter().map(|list| list[place].clone()).collect();
                let joined = pieces.zip(tensor.clone()).map(|(pieces, tensor)| join(pieces, &tensor.shape()));
                let data = |tensor: &Option<AnyTensor>| tensor.as_ref().map(|tensor| tensor.to_data().unwrap());
                prop_assert_eq!(data(&joined), data(tensor));
            }
        }
    }

    #[test]
    fn a_list_of_other_specs_is_refused() {
        let list = || pack(vec![Some(make(0, &[4], false)), None]);
        let refused = |specs: PieceSpecs| unpack(list(), &specs).unwrap_err();
        assert_eq!(refused(vec![(DType::F32, 4)]), "2 tensors arrived, this replica has 1");
        let other = refused(vec![(DType::F32, 5), (DType::F32, 1)]);
        assert_eq!(other, "4 elements of F32 arrived, 5 of F32 are expected");
        assert!(refused(vec![(DType::F64, 4), (DType::F32, 1)]).contains("4 of F64 are expected"));
        assert!(unpack(list(), &vec![(DType::F32, 4), (DType::F32, 1)]).is_ok());
    }
}
