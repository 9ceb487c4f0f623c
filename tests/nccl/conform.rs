//! The conformance suite, its tensors on the GPU wherever a GPU has their element type.

use crate::link;
use burn::tensor::{DType, Device};
use burn_pipeline::link::conformance::CASES;
use burn_pipeline::link::{Header, Link, LinkError, Message};
use burn_pipeline::stage::{AnyTensor, Payload};
use std::convert::Infallible;
use std::time::Instant;

/// One case, by its place.
pub(crate) fn case(place: usize) {
    let (link, device) = link();
    (CASES[place].1)(&mut OnGpu { link: Box::new(link), device });
}

/// The suite makes its tensors on the host and reads them there. This brings those of a message to the GPU before it is
/// sent, and back after it was received. Messages with an element type that GPUs lack stay on the host, and go the
/// other way that a link over NCCL has: so both are mixed.
struct OnGpu {
    link: Box<dyn Link>,
    device: Device,
}

impl OnGpu {
    fn moved(payload: Payload, device: &Device) -> Payload {
        let Ok(payload) = payload.map_tensors(|_, tensor| Ok::<_, Infallible>(tensor.to_device(device)));
        payload
    }

    /// On the host, in its own form of booleans.
    fn read(payload: Payload) -> Payload {
        let read = |tensor: AnyTensor| AnyTensor::from_data_exact(tensor.into_data().unwrap(), &Device::flex());
        let Ok(payload) = payload.map_tensors(|_, tensor| Ok::<_, Infallible>(read(tensor)));
        payload
    }
}

fn is_for_gpus(tensor: &AnyTensor) -> bool {
    matches!(tensor.dtype(), DType::F32 | DType::F16 | DType::BF16 | DType::I32 | DType::U32)
}

impl Link for OnGpu {
    burn_pipeline::forward_link!(link: rank, ranks, overlaps, monitor, to_device, set_activity);
    burn_pipeline::forward_link!(link: expect, all_gather, abort);

    fn send(&mut self, to: usize, message: Message, deadline: Instant) -> Result<(), LinkError> {
        let all = message.payload.tensors().all(is_for_gpus);
        let payload = match all {
            true => Self::moved(message.payload, &self.device),
            false => message.payload,
        };
        self.link.send(to, Message { header: message.header, payload }, deadline)
    }

    fn receive(&mut self, from: usize, header: Header, deadline: Instant) -> Result<Payload, LinkError> {
        self.link.receive(from, header, deadline).map(Self::read)
    }
}
