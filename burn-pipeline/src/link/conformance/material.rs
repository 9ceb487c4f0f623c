//! Shared helpers of the cases: deadlines, headers, and payloads whose every bit is known.

use crate::link::header::{Header, Message, MessageKind};
use crate::link::link_trait::Link;
use crate::payload::{AnyTensor, Boundary, Payload, PayloadSpec, TensorKind};
use burn::tensor::{Bool, DType, Device, Int, Tensor, TensorData};
use burn_pipeline_plan::plan::StageId;
use std::time::{Duration, Instant};

/// The longest that a wait may take if no failure is expected.
pub(super) const TIMEOUT: Duration = Duration::from_secs(60);

/// Late enough for everything that must succeed.
pub(super) fn deadline() -> Instant {
    Instant::now() + TIMEOUT
}

/// The header that most cases use.
pub(super) fn header(microbatch: usize) -> Header {
    Header { stage: StageId::new(1), microbatch, kind: MessageKind::Activation }
}

/// A message with that header.
pub(super) fn message(microbatch: usize, payload: Payload) -> Message {
    Message { header: header(microbatch), payload }
}

/// All ranks but this one.
pub(super) fn others(link: &dyn Link) -> Vec<usize> {
    (0..link.ranks()).filter(|&rank| rank != link.rank()).collect()
}

/// Returns once all ranks are here; earlier messages have not necessarily arrived.
pub(super) fn barrier(link: &mut dyn Link) {
    link.barrier(deadline()).unwrap();
}

/// Numbers that no other sender, receiver or microbatch has.
pub(super) fn numbers(from: usize, to: usize, microbatch: usize, count: usize) -> Tensor<1> {
    let seed = (from * 31 + to) * 1009 + microbatch;
    let values: Vec<f32> = (0..count).map(|i| ((seed + i) % 997) as f32 - 0.5).collect();
    Tensor::from_data(TensorData::new(values, [count]), &Device::flex())
}

/// Fails unless both payloads are the same, bit for bit.
pub(super) fn assert_same(payload: &Payload, expected: &Payload) {
    let read = |payload: &Payload| -> Vec<(TensorKind, DType, Vec<usize>, Vec<u8>)> {
        let tensor = |tensor: &AnyTensor| {
            let data = tensor.to_data().unwrap();
            (tensor.kind(), data.dtype(), tensor.shape().to_vec(), data.as_bytes().to_vec())
        };
        payload.tensors().map(tensor).collect()
    };
    assert_eq!(PayloadSpec::of_payload(payload), PayloadSpec::of_payload(expected));
    assert!(read(payload) == read(expected), "another payload came");
}

/// A payload with floats of every width, integers, booleans, an empty tensor, missing tensors, empty lists, and
/// plain values.
pub(super) fn mixed_payload() -> Payload {
    let device = Device::flex();
    let x = Tensor::<2>::from_floats([[f32::MIN_POSITIVE / 2.0, -0.0, f32::INFINITY], [1e-8, 0.1, -3.5]], &device);
    let ids = Tensor::<1, Int>::from_ints([i32::MAX, i32::MIN, -1, 0, 7], &device);
    let mask: Tensor<1, Bool> = ids.clone().greater_elem(0);
    let empty = Tensor::<3>::zeros([4, 0, 3], &device);
    let casts = vec![DType::F64, DType::F16, DType::BF16];
    let wide: Vec<AnyTensor> = casts.into_iter().map(|dtype| AnyTensor::new(x.clone().cast(dtype))).collect();
    let ints = [DType::I64, DType::I16, DType::I8, DType::U32, DType::U8];
    let ints: Vec<AnyTensor> = ints.into_iter().map(|dtype| AnyTensor::new(ids.clone().cast(dtype))).collect();
    let plain = ((f64::NAN, -0.0, i64::MIN), (true, "Zürich".to_owned(), String::new()));
    ((Some(x), None::<Tensor<1>>), (ids, mask), (empty, wide), ints, Vec::<Tensor<1>>::new(), plain).into_payload()
}
