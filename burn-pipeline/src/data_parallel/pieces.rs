//! Tensors cut into one piece per replica.
//!
//! Guarantees: cutting and joining a tensor returns it bit for bit.
//!
//! A tensor is cut along its flat (row-major) order, padded with zeros so that all pieces have the same length.

use crate::payload::AnyTensor;
use burn::tensor::Shape;

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

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{Device, Int, Tensor};
    use proptest::{prop_assert_eq, proptest};

    proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]
        #[test]
        fn pieces_of_one_length_join_to_the_tensor(
            shape in proptest::collection::vec(1usize..5, 1..4),
            parts in 1usize..5,
        ) {
            let elements = shape.iter().product::<usize>();
            let whole = Tensor::<1, Int>::arange(0..elements as i64, &Device::flex());
            let whole = AnyTensor::new(whole).reshape(Shape::from(shape.clone()));
            let pieces = cut(whole.clone(), parts);
            prop_assert_eq!(pieces.len(), parts);
            for piece in &pieces {
                prop_assert_eq!(piece.shape(), Shape::new([length(elements, parts)]));
            }
            prop_assert_eq!(join(pieces, &shape).to_data().unwrap(), whole.to_data().unwrap());
        }
    }
}
