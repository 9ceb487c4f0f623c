//! Messages of these tests, and how a rank reports a failure.

use burn::tensor::{Device, Tensor, TensorData};
use burn_pipeline::link::{Header, Link, Message, MessageKind};
use burn_pipeline::payload::{Boundary, Payload};
use burn_pipeline::plan::StageId;
use burn_pipeline_nccl::NcclLink;
use std::time::{Duration, Instant};

pub(super) fn header(microbatch: usize) -> Header {
    Header { stage: StageId::new(0), microbatch, kind: MessageKind::Activation }
}

pub(super) fn on(device: &Device, values: Vec<f32>) -> Tensor<1> {
    let length = values.len();
    Tensor::from_data(TensorData::new(values, [length]), device)
}

pub(super) fn read(payload: Payload) -> Vec<f32> {
    Tensor::<1>::from_payload(payload).unwrap().into_data().iter::<f32>().collect()
}

/// A message that takes several steps, and is identified by its values.
pub(super) fn send(link: &mut NcclLink, device: &Device, to: usize, place: usize, timeout: Duration) {
    let payload = on(device, vec![place as f32; 40_000]).into_payload();
    link.send(to, Message { header: header(place), payload }, Instant::now() + timeout).unwrap();
}

/// The milliseconds after which a rank reported its failure.
pub(super) fn failed_after(text: &str) -> u64 {
    let after = text.lines().find_map(|line| line.strip_prefix("failed after ")?.split(' ').next());
    after.unwrap_or_else(|| panic!("{text}")).parse().unwrap()
}

/// The number of calls of this rank that the mock has recorded under a name.
pub(super) fn calls(name: &str) -> usize {
    let of = |name: &str| std::env::var(name).unwrap();
    let written = std::fs::read_to_string(format!("{}/calls-{}", of("STAND_IN_ROOMS"), of("RANK")));
    written.unwrap_or_default().lines().filter(|call| *call == name).count()
}
