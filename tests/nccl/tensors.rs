//! Layouts and element types: padded rows, views, half precision, tracked tensors; and collectives over groups.

use crate::{TIMEOUT, link};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use burn_pipeline::link::{Header, Link, Message, MessageKind};
use burn_pipeline::payload::{AnyTensor, Boundary, Payload};
use burn_pipeline::plan::StageId;
use std::time::Instant;

fn header(microbatch: usize) -> Header {
    Header { stage: StageId::new(0), microbatch, kind: MessageKind::Activation }
}

/// Rows of 65 elements are padded on a GPU.
fn rows(device: &Device, seed: usize, rows: usize, columns: usize) -> Tensor<2> {
    let values: Vec<f32> = (0..rows * columns).map(|i| ((i + seed) % 509) as f32 * 0.25 - 31.0).collect();
    Tensor::from_data(TensorData::new(values, [rows, columns]), device)
}

fn read(payload: &Payload) -> Vec<TensorData> {
    payload.tensors().map(|tensor| tensor.to_data().unwrap()).collect()
}

/// A rank's messages to itself keep memory, layout and element type, without another rank.
pub(crate) fn to_itself() {
    let (mut link, device) = link();
    let padded = rows(&device, 1, 129, 65);
    let view = padded.clone().transpose().slice([3..40, 7..100]);
    let ids = Tensor::<1, Int>::arange(0..77, &device);
    let tracked = rows(&device.clone().autodiff(), 2, 5, 65).require_grad() * 2.0;
    let casts: Vec<AnyTensor> =
        [DType::BF16, DType::F16].into_iter().map(|dtype| AnyTensor::new(padded.clone().cast(dtype))).collect();
    let empty = Tensor::<2>::zeros([0, 65], &device);
    let sent = ((padded, view), (ids.clone(), ids.greater_elem(30)), (tracked, empty), casts).into_payload();
    let deadline = Instant::now() + TIMEOUT;
    for microbatch in 0..3 {
        link.send(0, Message { header: header(microbatch), payload: sent.clone() }, deadline).unwrap();
    }
    for microbatch in 0..3 {
        let got = link.receive(0, header(microbatch), deadline).unwrap();
        assert_eq!(read(&got), read(&sent));
        assert!(got.tensors().all(|tensor| tensor.device().inner() == device));
    }
    let collectives = link.collectives().unwrap();
    collectives.form_sets(&[vec![0]], deadline).unwrap();
    let summed = collectives.sum(0, &[0], vec![Some(AnyTensor::new(rows(&device, 3, 4, 65))), None], deadline).unwrap();
    assert_eq!(summed[0].as_ref().unwrap().to_data().unwrap(), rows(&device, 3, 4, 65).into_data());
    assert!(summed[1].is_none());
}

/// Sums that are exact in any order, so that the test can compute them as well.
pub(crate) fn collectives(columns: usize) {
    let (mut link, device) = link();
    let (me, ranks) = (link.rank(), link.ranks());
    let deadline = Instant::now() + TIMEOUT;
    let all: Vec<usize> = (0..ranks).collect();
    let outer = vec![0, ranks - 1];
    link.collectives().unwrap().form_sets(&[all.clone(), outer.clone()], deadline).unwrap();
    let of = |rank: usize, device: &Device| rows(device, rank * 7, 4 * ranks, columns);
    let host = Device::flex();
    let sum = |members: &[usize]| members.iter().map(|&rank| of(rank, &host)).reduce(|a, b| a + b).unwrap();
    for (number, members) in [(0, &all), (1, &outer)] {
        let Some(place) = members.iter().position(|&rank| rank == me) else { continue };
        let count = members.len();
        // Only the last member has the second tensor, and nobody the third.
        let alone = (place + 1 == count).then(|| AnyTensor::new(of(9, &device)));
        let mine = vec![Some(AnyTensor::new(of(me, &device))), alone, None];
        let got = link.collectives().unwrap().sum(number, members, mine, deadline).unwrap();
        let expected = [Some(sum(members)), Some(of(9, &host)), None];
        for (got, expected) in got.iter().zip(expected) {
            assert_eq!(got.as_ref().map(|t| t.to_data().unwrap()), expected.map(Tensor::into_data));
        }
    }
    link.barrier(deadline).unwrap();
}
