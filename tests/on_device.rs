//! The conformance suite with its tensors on a device, wherever the device has their element type.
//!
//! The suite makes its tensors on the host and compares them there. [`OnDevice`] brings those of a message to the device before it
//! is sent, and back after it was received. A message with an element type that the device lacks stays on the host, and goes the
//! other way that a link may have: so both are mixed.

use burn::tensor::{DType, Device};
use burn_pipeline::link::{Header, Link, LinkError, Message};
use burn_pipeline::stage::{AnyTensor, Payload};
use std::convert::Infallible;
use std::fmt::Debug;
use std::time::Instant;

/// A link that is given tensors on a device.
#[derive(Debug)]
pub struct OnDevice<L> {
    link: L,
    device: Device,
}

impl<L: Link + Debug> OnDevice<L> {
    /// The link of a rank that computes on this device.
    pub fn new(link: L, device: Device) -> Self {
        Self { link, device }
    }

    fn takes(&self, tensor: &AnyTensor) -> bool {
        let dtype = tensor.dtype();
        let known = matches!(dtype, DType::F32 | DType::F16 | DType::BF16 | DType::I32 | DType::U32);
        known && self.device.supports_dtype(dtype)
    }
}

/// On the host, in its own form of booleans.
fn read(payload: Payload) -> Payload {
    let read = |tensor: AnyTensor| {
        AnyTensor::from_data_exact(tensor.into_data().expect("the device answers"), &Device::flex())
    };
    let Ok(payload) = payload.map_tensors(|_, tensor| Ok::<_, Infallible>(read(tensor)));
    payload
}

impl<L: Link + Debug> Link for OnDevice<L> {
    burn_pipeline::forward_link!(link: rank, ranks, overlaps, monitor, to_device, set_activity);
    burn_pipeline::forward_link!(link: expect, all_gather, abort);

    fn send(&mut self, to: usize, message: Message, deadline: Instant) -> Result<(), LinkError> {
        let Message { header, payload } = message;
        let payload = if payload.tensors().all(|tensor| self.takes(tensor)) {
            let Ok(moved) = payload.map_tensors(|_, tensor| Ok::<_, Infallible>(tensor.to_device(&self.device)));
            moved
        } else {
            payload
        };
        self.link.send(to, Message { header, payload }, deadline)
    }

    fn receive(&mut self, from: usize, header: Header, deadline: Instant) -> Result<Payload, LinkError> {
        self.link.receive(from, header, deadline).map(read)
    }
}
