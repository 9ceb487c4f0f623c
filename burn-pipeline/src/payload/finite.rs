//! Finds a tensor with an element that is NaN or infinite.
//!
//! Guarantees: the answer is exact for every float type: large finite elements do not count as infinite. Nothing is
//! copied or changed.
//!
//! 1. On Flex the elements are read in place, in one pass: an element is not finite if all bits of its exponent are
//!    set.
//! 2. On other backends, and for views that are not contiguous in memory, each tensor is multiplied by 0 and summed
//!    on its device: the sum is 0 or NaN. One number per tensor is read back, for all tensors at once.

use super::any_tensor::AnyTensor;
use burn::backend::ops::FloatTensorOps;
use burn::backend::{BackendTensor, Dispatch, DispatchKindConversion, DispatchTensor, Flex};
use burn::tensor::{DType, FloatDType};

/// Returns the index of the first of these float tensors, all on one device, with a non-finite element (waits for the
/// device).
///
/// # Errors
/// Returns the device's message if it reports a failure.
pub(crate) fn first_non_finite<'a>(tensors: impl IntoIterator<Item = &'a AnyTensor>) -> Result<Option<usize>, String> {
    let (mut places, mut sums, mut here) = (Vec::new(), Vec::new(), None);
    for (place, tensor) in tensors.into_iter().enumerate() {
        match is_finite_here(tensor) {
            Some(true) => {}
            Some(false) => {
                here = Some(place);
                break;
            }
            None => {
                places.push(place);
                sums.push(zero_or_nan(tensor.clone()));
            }
        }
    }
    let Some(sums) = AnyTensor::cat(sums, 0) else { return Ok(here) };
    let sums = sums.into_data()?;
    let there = sums.iter::<f32>().zip(places).find(|(sum, _)| sum.is_nan());
    Ok(there.map(|(_, place)| place).or(here))
}

/// One element: 0 if all elements are finite, else NaN.
fn zero_or_nan(tensor: AnyTensor) -> AnyTensor {
    let sum = Dispatch::float_sum(Dispatch::float_mul_scalar(tensor.into_dispatch(), 0.0.into()));
    AnyTensor::from_dispatch(Dispatch::float_cast(sum, FloatDType::F32))
}

/// Returns true if all elements are finite; `None` if the host does not hold them as one slice.
fn is_finite_here(tensor: &AnyTensor) -> Option<bool> {
    /// The number of elements between two checks of the result.
    const AT_ONCE: usize = 1 << 12;

    macro_rules! finite {
        ($bytes:expr, $bits:ty, $exponent:expr) => {{
            let odd = |bytes: &[u8; size_of::<$bits>()]| <$bits>::from_ne_bytes(*bytes) & $exponent == $exponent;
            let (elements, _) = $bytes.as_chunks();
            // No branch inside, so that it is compiled to vector instructions.
            elements.chunks(AT_ONCE).all(|chunk| !chunk.iter().fold(false, |found, bytes| found | odd(bytes)))
        }};
    }

    let flex = <DispatchTensor as DispatchKindConversion<Flex>>::try_into_backend(tensor.as_dispatch().clone());
    let Ok(BackendTensor::Float(flex)) = flex else { return None };
    let (start, end) = flex.layout().contiguous_offsets()?;
    let size = tensor.dtype().size();
    let bytes = flex.bytes().get(start * size..end * size)?;
    match tensor.dtype() {
        DType::F64 => Some(finite!(bytes, u64, 0x7FF0_0000_0000_0000)),
        DType::F32 => Some(finite!(bytes, u32, 0x7F80_0000)),
        DType::F16 => Some(finite!(bytes, u16, 0x7C00)),
        DType::BF16 => Some(finite!(bytes, u16, 0x7F80)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{Device, Tensor, TensorData};

    const TYPES: [DType; 4] = [DType::F64, DType::F32, DType::F16, DType::BF16];

    fn tensor(values: &[f64], dtype: DType) -> AnyTensor {
        let data = TensorData::new(values.to_vec(), [values.len()]).convert_dtype(dtype);
        AnyTensor::from_data(data, &Device::flex())
    }

    #[test]
    fn the_first_tensor_with_a_number_that_is_not_finite_is_found_in_every_type() {
        for dtype in TYPES {
            let largest = dtype.finfo().unwrap().max;
            let fine = || tensor(&[0.0, -0.0, 1.0, -largest, largest, dtype.finfo().unwrap().min_positive], dtype);
            assert_eq!(first_non_finite(&[fine(), fine()]), Ok(None), "{dtype:?}");
            for odd in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
                // Also at indices that no vector block covers.
                for place in [0, 1, 4095, 4096, 10_000] {
                    let mut values = vec![largest; 10_001];
                    values[place] = odd;
                    let odd = || tensor(&values, dtype);
                    assert_eq!(first_non_finite(&[fine(), odd(), fine(), odd()]), Ok(Some(1)), "{dtype:?}");
                }
            }
        }
    }

    #[test]
    fn views_are_looked_at_as_slices_are_and_only_where_they_look() {
        for odd in [f32::NAN, f32::INFINITY] {
            let whole = Tensor::<2>::from_floats([[1.0, 2.0, 3.0], [4.0, odd, f32::MAX]], &Device::flex());
            let seen = |view: Tensor<2>| first_non_finite(&[AnyTensor::new(view)]).unwrap();
            assert_eq!(seen(whole.clone()), Some(0));
            assert_eq!(seen(whole.clone().transpose()), Some(0));
            assert_eq!(seen(whole.clone().narrow(1, 1, 1)), Some(0));
            assert_eq!(seen(whole.clone().narrow(0, 0, 1)), None);
            assert_eq!(seen(whole.narrow(1, 2, 1)), None);
        }
    }
}
