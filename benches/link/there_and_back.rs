//! Messages to another rank and back.

use crate::samples::{SIZES, Samples, repetitions};
use burn::tensor::{Device, Tensor};
use burn_pipeline::link::{Admission, Header, Link, Message, MessageKind, Rendezvous, TcpLink, Threads};
use burn_pipeline::payload::{Boundary, Payload};
use std::hint::black_box;
use std::time::{Duration, Instant};

pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

fn header() -> Header {
    Header::of(MessageKind::Timing)
}

fn payload(size: usize) -> Payload {
    Tensor::<1>::ones([size / size_of::<f32>()], &Device::flex()).into_payload()
}

fn send(link: &mut dyn Link, payload: Payload) {
    let to = 1 - link.rank();
    link.send(to, Message { header: header(), payload }, Instant::now() + TIMEOUT).unwrap();
}

fn receive(link: &mut dyn Link) -> Payload {
    let from = 1 - link.rank();
    link.receive(from, header(), Instant::now() + TIMEOUT).unwrap()
}

/// Rank 0's measurements of all sizes; rank 1 sends back what arrives.
pub(crate) fn measure(link: &mut dyn Link, contestant: &str, samples: &mut Samples) {
    for size in SIZES {
        let warm = 3;
        let count = repetitions(size);
        if link.rank() == 1 {
            for _ in 0..count + warm {
                let payload = receive(link);
                send(link, payload);
            }
            continue;
        }
        let mut payload = payload(size);
        let mut seconds = Vec::new();
        for round in 0..count + warm {
            let began = Instant::now();
            send(link, payload);
            payload = receive(link);
            if round >= warm {
                seconds.push(began.elapsed().as_secs_f64() / 2.0);
            }
        }
        samples.add(contestant, size, &seconds);
    }
}

/// Both ends of a link, each in its own thread.
fn between(contestant: &str, samples: &mut Samples, link: impl Fn(usize) -> Box<dyn Link> + Sync) {
    std::thread::scope(|scope| {
        scope.spawn(|| measure(link(1).as_mut(), contestant, &mut Samples::default()));
        measure(link(0).as_mut(), contestant, samples);
    });
}

pub(crate) fn threads(samples: &mut Samples) {
    let threads = Threads::new(2);
    between("threads", samples, |rank| Box::new(threads.link(rank, Device::flex())));
}

pub(crate) fn tcp(samples: &mut Samples) {
    let port = crate::port();
    between("TCP", samples, |rank| Box::new(over_tcp(rank, port)));
}

pub(crate) fn over_tcp(rank: usize, port: u16) -> TcpLink {
    let place =
        Rendezvous { rank, ranks: 2, address: ("127.0.0.1".to_owned(), port), admission: Admission::ThisMachine };
    TcpLink::connect(&place, Device::flex(), TIMEOUT).unwrap()
}

pub(crate) fn memory_copy(samples: &mut Samples) {
    for size in SIZES {
        let (source, mut target) = (vec![1u8; size], vec![0u8; size]);
        // Copying a few bytes is faster than the clock, so many copies are timed at once.
        let at_once = (4096 / size).max(1);
        let copy = |_| {
            let began = Instant::now();
            for _ in 0..at_once {
                black_box(&mut target[..]).copy_from_slice(black_box(&source));
            }
            began.elapsed().as_secs_f64() / at_once as f64
        };
        let seconds: Vec<f64> = (0..repetitions(size) + 3).map(copy).collect();
        samples.add("memory copy", size, &seconds[3..]);
    }
}
