//! Latency of messages with repeating and with changing shapes: `mpirun -n 2 target/debug/ranks times -`.

use burn::tensor::{Device, Tensor};
use burn_pipeline::link::{Header, Link, Message, MessageKind};
use burn_pipeline::payload::Boundary;
use burn_pipeline::plan::StageId;
use burn_pipeline_mpi::Mpi;
use std::time::{Duration, Instant};

/// Sizes in bytes, and the number of round trips of each.
const SIZES: [(usize, usize); 5] = [(1 << 10, 2000), (1 << 14, 2000), (1 << 18, 600), (1 << 20, 300), (1 << 24, 40)];

/// Prints the median of half a round trip, in microseconds. Rounds with one shape alternate with rounds of two
/// shapes, so that other load on the machine affects both.
pub(crate) fn print(mpi: &Mpi) {
    let mut link = mpi.link(Device::flex()).unwrap();
    for (bytes, trips) in SIZES {
        let (mut repeating, mut changing) = (Vec::new(), Vec::new());
        for _ in 0..5 {
            repeating.extend(round(&mut link, bytes / 4, trips / 5, 0));
            changing.extend(round(&mut link, bytes / 4, trips / 5, 1));
        }
        if mpi.rank() == 0 {
            let (repeating, changing) = (median(repeating), median(changing));
            println!("{bytes} bytes: {repeating:.1} us where shapes repeat, {changing:.1} us where they change");
        }
    }
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64() * 1e6
}

/// The times of half round trips. Every other message has `more` more elements.
fn round(link: &mut dyn Link, elements: usize, trips: usize, more: usize) -> Vec<Duration> {
    let (me, deadline) = (link.rank(), Instant::now() + Duration::from_secs(60));
    if me > 1 {
        return Vec::new();
    }
    let peer = 1 - me;
    let header = |microbatch| Header { stage: StageId::new(1), microbatch, kind: MessageKind::Activation };
    let tensors = [elements, elements + more].map(|elements| Tensor::<1>::ones([elements], &Device::flex()));
    let message = |trip: usize| Message { header: header(trip), payload: tensors[trip % 2].clone().into_payload() };
    let mut times = Vec::new();
    for trip in 0..trips {
        let began = Instant::now();
        if me == 0 {
            link.send(peer, message(trip), deadline).unwrap();
            link.receive(peer, header(trip), deadline).unwrap();
        } else {
            link.receive(peer, header(trip), deadline).unwrap();
            link.send(peer, message(trip), deadline).unwrap();
        }
        times.push(began.elapsed() / 2);
    }
    times
}
