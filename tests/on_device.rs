//! A rank that computes on the host over a link that transfers device tensors, for element types that the device
//! has: used by the conformance suite, and by pipelines if the device runs no kernels.
//!
//! The rank makes and reads its tensors on the host. [`OnDevice`] moves the tensors of a message or a collective to
//! the device before they are sent, and back after they are received. A message with an element type that the
//! device lacks stays on the host and takes the link's path for host tensors, so both paths are mixed.

use burn::tensor::{DType, Device, Shape};
use burn_pipeline::link::{Collectives, FlatCollective, Header, Link, LinkError, Message};
use burn_pipeline::payload::{AnyTensor, HostValue, Payload, PayloadPart};
use std::convert::Infallible;
use std::fmt::Debug;
use std::time::Instant;

/// A link that is given tensors on a device.
#[derive(Debug)]
pub struct OnDevice<L> {
    link: L,
    device: Device,
    flat: bool,
}

impl<L: Link + Debug> OnDevice<L> {
    /// A link for tensors on this device.
    pub fn new(link: L, device: Device) -> Self {
        Self { link, device, flat: false }
    }

    /// The same for a device that runs no kernels. Its tensors are flat: rows may be padded, and removing the
    /// padding takes a kernel.
    pub fn flat(link: L, device: Device) -> Self {
        Self { link, device, flat: true }
    }

    fn takes(&self, tensor: &AnyTensor) -> bool {
        let dtype = tensor.dtype();
        let known = matches!(dtype, DType::F32 | DType::F16 | DType::BF16 | DType::I32 | DType::U32);
        known && self.device.supports_dtype(dtype)
    }
}

/// Moves all tensors to the host, with the host's form of booleans.
fn read(payload: Payload) -> Payload {
    let Ok(payload) = payload.map_tensors(|_, tensor| Ok::<_, Infallible>(on_host(tensor)));
    payload
}

/// Flattens all tensors to one axis, behind a text with their shapes.
fn flattened(payload: Payload) -> Payload {
    let shape = |tensor: &AnyTensor| tensor.shape().iter().map(usize::to_string).collect::<Vec<_>>().join("x");
    let shapes = payload.tensors().map(shape).collect::<Vec<_>>().join(" ");
    let Ok(flat) = payload.map_tensors(|_, tensor| {
        let elements = tensor.shape().num_elements();
        Ok::<_, Infallible>(tensor.reshape(Shape::new([elements])))
    });
    Payload::from_parts(std::iter::once(PayloadPart::Host(HostValue::Text(shapes))).chain(flat.into_parts()))
}

/// Undoes [`flattened`].
fn shaped(payload: Payload) -> Payload {
    let mut parts = payload.into_parts();
    let Some(PayloadPart::Host(HostValue::Text(shapes))) = parts.next() else { panic!("the shapes come first") };
    let shape = |text: &str| text.split('x').map(|size| size.parse().expect("a size")).collect::<Vec<usize>>();
    let mut shapes = shapes.split(' ').map(shape);
    let rest: Vec<PayloadPart> = parts.collect();
    let Ok(shaped) = Payload::from_parts(rest).map_tensors(|_, tensor| {
        Ok::<_, Infallible>(tensor.reshape(Shape::from(shapes.next().expect("each tensor has a shape"))))
    });
    shaped
}

fn on_host(tensor: AnyTensor) -> AnyTensor {
    AnyTensor::from_data(tensor.into_data().expect("the device answers"), &Device::flex())
}

impl<L: Link + Debug> Link for OnDevice<L> {
    burn_pipeline::forward_link!(link: rank, ranks, monitor, set_activity);
    burn_pipeline::forward_link!(link: all_gather, abort);

    fn to_device(&self, payload: Payload) -> Payload {
        read(payload)
    }

    fn collectives(&mut self) -> Option<&mut dyn Collectives> {
        if self.link.collectives().is_some() { Some(self) } else { None }
    }

    fn send(&mut self, to: usize, message: Message, deadline: Instant) -> Result<(), LinkError> {
        let Message { header, payload } = message;
        let payload = if self.flat { flattened(payload) } else { payload };
        let payload = if payload.tensors().all(|tensor| self.takes(tensor)) {
            let Ok(moved) = payload.map_tensors(|_, tensor| Ok::<_, Infallible>(tensor.to_device(&self.device)));
            moved
        } else {
            payload
        };
        self.link.send(to, Message { header, payload }, deadline)
    }

    fn receive(&mut self, from: usize, header: Header, deadline: Instant) -> Result<Payload, LinkError> {
        let payload = read(self.link.receive(from, header, deadline)?);
        Ok(if self.flat { shaped(payload) } else { payload })
    }
}

impl<L: Link + Debug> OnDevice<L> {
    fn below(&mut self) -> &mut dyn Collectives {
        self.link.collectives().expect("the link has collectives")
    }
}

impl<L: Link + Debug> Collectives for OnDevice<L> {
    fn form(&mut self, group: &[usize], deadline: Instant) -> Result<(), LinkError> {
        self.below().form(group, deadline)
    }

    fn begin(&mut self, collective: FlatCollective, what: String, tensor: AnyTensor) -> Result<(), LinkError> {
        let elements = tensor.shape().num_elements();
        let tensor = tensor.reshape(Shape::new([elements])).to_device(&self.device);
        self.below().begin(collective, what, tensor)
    }

    fn end(&mut self, deadline: Instant) -> Result<AnyTensor, LinkError> {
        self.below().end(deadline).map(on_host)
    }

    fn meet(&mut self, what: String, deadline: Instant) -> Result<(), LinkError> {
        self.below().meet(what, deadline)
    }

    fn form_sets(&mut self, sets: &[Vec<usize>], deadline: Instant) -> Result<(), LinkError> {
        self.below().form_sets(sets, deadline)
    }

    fn sum(
        &mut self,
        set: usize,
        ranks: &[usize],
        tensors: Vec<Option<AnyTensor>>,
        deadline: Instant,
    ) -> Result<Vec<Option<AnyTensor>>, LinkError> {
        // Where shapes cannot be kept, this rank must have every tensor that another one has.
        let shapes: Vec<Option<Shape>> = tensors.iter().map(|tensor| Some(tensor.as_ref()?.shape())).collect();
        let moved = |tensor: AnyTensor| {
            let shape = if self.flat { Shape::new([tensor.shape().num_elements()]) } else { tensor.shape() };
            tensor.reshape(shape).to_device(&self.device)
        };
        let tensors = tensors.into_iter().map(|tensor| tensor.map(moved)).collect();
        let sums = self.below().sum(set, ranks, tensors, deadline)?.into_iter().zip(shapes);
        let shaped = |(sum, shape): (Option<AnyTensor>, Option<Shape>)| {
            let sum = on_host(sum?);
            let shape = shape.unwrap_or_else(|| sum.shape());
            Some(sum.reshape(shape))
        };
        Ok(sums.map(shaped).collect())
    }
}
