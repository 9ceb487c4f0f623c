//! Lists of tensors that travel as one buffer for each element type.
//!
//! Guarantees: [`unpack`] returns the list that [`pack`] took, missing tensors included; an incomplete payload is
//! refused with the reason.

use crate::payload::{AnyTensor, Payload, PayloadPart, TensorKind};
use burn::tensor::{DType, Shape};

/// A list of tensors, some of which may be missing.
pub(crate) type TensorList = Vec<Option<AnyTensor>>;

/// Joins pieces into one flat tensor.
fn join(pieces: Vec<AnyTensor>) -> Option<AnyTensor> {
    let whole = |piece: &AnyTensor| piece.shape().num_elements() > 0;
    match pieces.iter().filter(|piece| whole(piece)).count() {
        0 => pieces.into_iter().next(),
        1 => pieces.into_iter().find(whole),
        _ => AnyTensor::cat(pieces.into_iter().filter(whole).collect(), 0),
    }
}

/// Packs a list into a payload of one buffer for each element type. Its tags are the number of tensors and, for
/// each tensor, 0 if it is missing, else its buffer's index from 1, its number of dimensions, and the dimensions.
pub(super) fn pack(tensors: TensorList) -> Payload {
    let mut payload = Payload::default();
    let mut buffers: Vec<(DType, Vec<AnyTensor>)> = Vec::new();
    payload.push_tag(tensors.len());
    for tensor in tensors {
        let Some(tensor) = tensor else {
            payload.push_tag(0);
            continue;
        };
        let (dtype, shape) = (tensor.dtype(), tensor.shape());
        let known = buffers.iter().position(|(other, _)| *other == dtype);
        let place = known.unwrap_or_else(|| {
            buffers.push((dtype, Vec::new()));
            buffers.len() - 1
        });
        payload.push_tag(place + 1);
        payload.push_tag(shape.num_dims());
        shape.to_vec().into_iter().for_each(|size| payload.push_tag(size));
        let length = shape.num_elements();
        buffers[place].1.push(tensor.reshape(Shape::from([length])));
    }
    buffers.into_iter().filter_map(|(_, pieces)| join(pieces)).for_each(|buffer| payload.push_tensor(buffer));
    payload
}

/// Unpacks the list of a payload.
pub(super) fn unpack(payload: Payload) -> Result<TensorList, String> {
    let (mut tags, mut buffers) = (Vec::new(), Vec::new());
    for part in payload.into_parts() {
        match part {
            PayloadPart::Tag(tag) => tags.push(tag),
            PayloadPart::Tensor(tensor) if tensor.rank() != 1 => return Err("a buffer is not flat".to_owned()),
            PayloadPart::Tensor(tensor) => buffers.push((tensor, 0usize)),
            PayloadPart::Host(_) => return Err("it holds a plain value".to_owned()),
        }
    }
    let mut tags = tags.into_iter();
    let mut tag = || tags.next().ok_or("its tags end too early");
    let mut list = Vec::new();
    for _ in 0..tag()? {
        let Some(place) = tag()?.checked_sub(1) else {
            list.push(None);
            continue;
        };
        let dims = tag()?;
        let shape: Vec<usize> = (0..dims).map(|_| tag()).collect::<Result<_, _>>()?;
        let (buffer, taken) = buffers.get_mut(place).ok_or("a buffer is missing")?;
        let length = shape.iter().try_fold(1usize, |all, &size| all.checked_mul(size)).ok_or("a shape is too large")?;
        let (start, end) = (*taken, taken.checked_add(length).ok_or("a shape is too large")?);
        let held = buffer.shape().num_elements();
        if end > held {
            return Err(format!("a buffer of {held} elements came for {end}"));
        }
        *taken = end;
        let flat = match length {
            0 => buffer.zeros(Shape::from([0])),
            _ if length == held => buffer.clone(),
            _ => buffer.clone().narrow(0, start, end),
        };
        list.push(Some(flat.reshape(Shape::from(shape))));
    }
    Ok(list)
}

/// A sum of lists. Half precision is added in f32, and rounded once at the end.
#[derive(Default)]
pub(super) struct ListSum {
    total: Option<TensorList>,
    /// The element type of each tensor, once a list has it.
    dtypes: Vec<Option<DType>>,
}

impl ListSum {
    /// Adds a list; see [`sum`].
    ///
    /// # Errors
    /// Returns a description of the first difference from the lists before.
    pub(super) fn add(&mut self, list: TensorList) -> Result<(), String> {
        let own = list.iter().map(|tensor| tensor.as_ref().map(AnyTensor::dtype));
        self.total = Some(match self.total.take() {
            None => {
                self.dtypes = own.collect();
                widened(list)
            }
            Some(total) => {
                same_types(&mut self.dtypes, own)?;
                sum(total, widened(list))?
            }
        });
        Ok(())
    }

    /// The sum; empty if nothing was added.
    pub(super) fn rounded(self) -> TensorList {
        let round = |(tensor, dtype): (Option<AnyTensor>, Option<DType>)| Some(tensor?.cast(dtype?));
        self.total.unwrap_or_default().into_iter().zip(self.dtypes).map(round).collect()
    }
}

fn widened(list: TensorList) -> TensorList {
    let float = |tensor: AnyTensor| if tensor.kind() == TensorKind::Float { tensor.widened() } else { tensor };
    list.into_iter().map(|tensor| tensor.map(float)).collect()
}

/// Takes over the types of a list's tensors, which must be those that came before.
fn same_types(known: &mut [Option<DType>], came: impl Iterator<Item = Option<DType>>) -> Result<(), String> {
    for (known, came) in known.iter_mut().zip(came) {
        if let (Some(known), Some(came)) = (*known, came)
            && known != came
        {
            return Err(format!("a tensor of {came:?} came, one of {known:?} is held"));
        }
        *known = known.or(came);
    }
    Ok(())
}

/// Adds two lists, tensor by tensor. A tensor that one list lacks counts as zero.
///
/// # Errors
/// Returns a description of the first difference between the lists.
pub(crate) fn sum(ours: TensorList, theirs: TensorList) -> Result<TensorList, String> {
    if ours.len() != theirs.len() {
        return Err(format!("{} tensors came, {} are held", theirs.len(), ours.len()));
    }
    let add = |pair| match pair {
        (Some(ours), Some(theirs)) => add(ours, theirs).map(Some),
        (one, other) => Ok(one.or(other)),
    };
    ours.into_iter().zip(theirs).map(add).collect()
}

fn add(ours: AnyTensor, theirs: AnyTensor) -> Result<AnyTensor, String> {
    if ours.shape() != theirs.shape() || ours.dtype() != theirs.dtype() {
        let spec = |tensor: &AnyTensor| format!("{:?} of {:?}", tensor.shape(), tensor.dtype());
        return Err(format!("a tensor {} came, one {} is held", spec(&theirs), spec(&ours)));
    }
    match ours.kind() {
        TensorKind::Float => Ok(ours.plus(theirs)),
        _ => Err(format!("tensors of {:?} came, and only floats are added", ours.dtype())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{Device, Tensor, TensorData};
    use proptest::{prop_assert_eq, proptest};

    fn tensor(number: usize, shape: &[usize], double: bool) -> AnyTensor {
        let values: Vec<f32> = (0..shape.iter().product::<usize>()).map(|i| (number * 100 + i) as f32).collect();
        let data = TensorData::new(values, shape.to_vec());
        AnyTensor::from_data(data.convert_dtype(if double { DType::F64 } else { DType::F32 }), &Device::flex())
    }

    proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]
        #[test]
        fn lists_come_out_as_they_went_in(
            list in proptest::collection::vec(
                proptest::option::of((proptest::collection::vec(0usize..5, 1..4), proptest::bool::ANY)), 0..6
            ),
        ) {
            let make = |(i, spec): (usize, &Option<(Vec<usize>, bool)>)| {
                spec.as_ref().map(|(shape, double)| tensor(i, shape, *double))
            };
            let list: TensorList = list.iter().enumerate().map(make).collect();
            let data = |list: &TensorList| -> Vec<_> {
                list.iter().map(|tensor| tensor.as_ref().map(|tensor| tensor.to_data().unwrap())).collect()
            };
            prop_assert_eq!(data(&unpack(pack(list.clone())).unwrap()), data(&list));
        }
    }

    #[test]
    fn a_list_comes_from_flat_buffers_alone() {
        let pieces = vec![Some(AnyTensor::new(Tensor::<2>::zeros([2, 2], &Device::flex()))), None];
        let mut payload = pack(pieces);
        assert_eq!(unpack(payload.clone()).unwrap()[0].as_ref().unwrap().shape(), Shape::from([2, 2]));
        let parts = payload.into_parts().map(|part| match part {
            PayloadPart::Tensor(_) => PayloadPart::Tensor(AnyTensor::new(Tensor::<2>::zeros([5, 2], &Device::flex()))),
            tag => tag,
        });
        payload = Payload::from_parts(parts.collect::<Vec<_>>());
        assert!(unpack(payload).unwrap_err().contains("not flat"));
    }
}
