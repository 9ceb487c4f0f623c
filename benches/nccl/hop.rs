//! Messages over the link to the other rank and back.

use crate::samples::{SIZES, Samples};
use crate::{TIMEOUT, count, link};
use burn::tensor::{Device, Tensor, TensorData};
use burn_pipeline::link::{Header, Launch, Link, Message, MessageKind};
use burn_pipeline::payload::{Boundary, Payload};
use burn_pipeline_nccl::Ordering;
use std::time::Instant;

const WARM_UP: usize = 3;

pub(crate) fn payload(bytes: usize, device: &Device) -> Payload {
    let length = bytes / size_of::<f32>();
    Tensor::<1>::from_data(TensorData::new(vec![1.0_f32; length], [length]), device).into_payload()
}

pub(crate) fn send(link: &mut dyn Link, payload: Payload) {
    let (to, header) = (1 - link.rank(), Header::of(MessageKind::Timing));
    link.send(to, Message { header, payload }, Instant::now() + TIMEOUT).unwrap();
}

pub(crate) fn receive(link: &mut dyn Link) -> Payload {
    let (from, header) = (1 - link.rank(), Header::of(MessageKind::Timing));
    link.receive(from, header, Instant::now() + TIMEOUT).unwrap()
}

/// Rank 0 prints its measurements of all sizes; rank 1 sends back what arrives.
pub(crate) fn hops(launch: &Launch, ordering: Ordering, contestant: &str) {
    let (mut link, device) = link(launch, ordering, false);
    let mut samples = Samples::default();
    for size in SIZES {
        let (mut sent, mut seconds) = (payload(size, &device), Vec::new());
        for round in 0..count(size) + WARM_UP {
            let began = Instant::now();
            if launch.rank == 0 {
                send(&mut link, sent);
                sent = receive(&mut link);
            } else {
                sent = receive(&mut link);
                send(&mut link, sent.clone());
            }
            device.sync().unwrap();
            if round >= WARM_UP {
                seconds.push(began.elapsed().as_secs_f64() / 2.0);
            }
        }
        samples.add(contestant, size, &seconds);
    }
    if launch.rank == 0 {
        print!("{}", samples.write());
    }
    // The other rank may still be sending.
    link.barrier(Instant::now() + TIMEOUT).unwrap();
}
