//! Cases of messages from one rank to another: their order, their contents, and when they travel. Cases of gathers:
//! every rank gets what every rank gave.

use super::material::{assert_same, barrier, deadline, header, message, mixed_payload, numbers, others};
use crate::link::gather::gather;
use crate::link::header::{Header, Message, MessageKind};
use crate::link::link_trait::Link;
use crate::payload::{Boundary, Payload};
use burn_pipeline_plan::plan::StageId;
use std::time::{Duration, Instant};

/// Messages that are sent before the first receive: more bytes than sockets hold.
const AHEAD: usize = 64;

pub(super) fn keeps_order(link: &mut dyn Link) {
    let (me, ranks) = (link.rank(), others(link));
    for microbatch in 0..20 {
        for &to in &ranks {
            let payload = numbers(me, to, microbatch, 1 + microbatch * 300).into_payload();
            link.send(to, message(microbatch, payload), deadline()).unwrap();
        }
    }
    for &from in ranks.iter().rev() {
        for microbatch in 0..20 {
            let payload = link.receive(from, header(microbatch), deadline()).unwrap();
            assert_same(&payload, &numbers(from, me, microbatch, 1 + microbatch * 300).into_payload());
        }
    }
}

pub(super) fn tells_what_has_come(link: &mut dyn Link) {
    let (me, ranks) = (link.rank(), others(link));
    assert_eq!(link.probe(&ranks, Instant::now()).unwrap(), None, "nothing was sent yet");
    barrier(link);
    for &to in &ranks {
        for microbatch in [3, 1] {
            let payload = numbers(me, to, microbatch, 1000).into_payload();
            link.send(to, message(microbatch, payload), deadline()).unwrap();
        }
    }
    for &from in ranks.iter().rev() {
        for microbatch in [3, 1] {
            let reported = link.probe(&[from], deadline()).unwrap();
            // A link may not be able to probe; if it can, every probe gives the same answer.
            assert!(reported.is_none_or(|reported| reported == (from, header(microbatch))), "{reported:?}");
            assert_eq!(link.probe(&[from], Instant::now()).unwrap(), reported);
            let payload = link.receive(from, header(microbatch), deadline()).unwrap();
            assert_same(&payload, &numbers(from, me, microbatch, 1000).into_payload());
        }
    }
    assert_eq!(link.probe(&ranks, Instant::now() + Duration::from_millis(5)).unwrap(), None, "all was taken");
    barrier(link);
}

pub(super) fn sends_to_itself(link: &mut dyn Link) {
    let me = link.rank();
    for microbatch in 0..2 {
        link.send(me, message(microbatch, numbers(me, me, microbatch, 5).into_payload()), deadline()).unwrap();
    }
    for microbatch in 0..2 {
        let payload = link.receive(me, header(microbatch), deadline()).unwrap();
        assert_same(&payload, &numbers(me, me, microbatch, 5).into_payload());
    }
    barrier(link);
}

pub(super) fn carries_every_kind(link: &mut dyn Link) {
    for to in others(link) {
        link.send(to, message(0, mixed_payload()), deadline()).unwrap();
        link.send(to, message(1, Payload::default()), deadline()).unwrap();
    }
    for from in others(link) {
        assert_same(&link.receive(from, header(0), deadline()).unwrap(), &mixed_payload());
        assert_same(&link.receive(from, header(1), deadline()).unwrap(), &Payload::default());
    }
}

/// 12 MiB: no transport sends that eagerly.
const LARGE: usize = 3 << 20;

pub(super) fn carries_large_messages(link: &mut dyn Link) {
    let me = link.rank();
    for to in others(link) {
        link.send(to, message(0, numbers(me, to, 0, LARGE).into_payload()), deadline()).unwrap();
    }
    for from in others(link) {
        assert_same(&link.receive(from, header(0), deadline()).unwrap(), &numbers(from, me, 0, LARGE).into_payload());
    }
}

/// The lengths of one stream's messages: repeated, changed, changed back, zero, by turns.
const LENGTHS: [usize; 24] =
    [5, 5, 5, 5, 9, 5, 5, 5, 5, 0, 0, 0, 0, 7, 0, 7, 0, 40_000, 40_000, 40_000, 40_000, 5, 5, 5];

pub(super) fn lets_shapes_change(link: &mut dyn Link) {
    let me = link.rank();
    // Two streams to and from each rank, with their own lengths, and an empty tensor now and then.
    let streams = [(StageId::new(1), MessageKind::Activation), (StageId::new(0), MessageKind::Gradient)];
    let payload = |from: usize, to: usize, place: usize, stream: usize| {
        let length = LENGTHS[(place + 3 * stream) % LENGTHS.len()];
        let second = (place % 5 > 1).then(|| numbers(from, to, place + 100, length / 2));
        (numbers(from, to, place, length), second).into_payload()
    };
    let header = |place: usize, stream: usize| {
        let (stage, kind) = streams[stream];
        Header { stage, microbatch: place * 7, kind }
    };
    // First all are sent ahead of their receives, then each is received before the next: memory waits for messages,
    // and messages for memory.
    for ahead in [LENGTHS.len(), 1] {
        for first in (0..LENGTHS.len()).step_by(ahead) {
            let places = || (first..first + ahead).flat_map(|place| [(place, 0), (place, 1)]);
            for to in others(link) {
                for (place, stream) in places() {
                    let message = Message { header: header(place, stream), payload: payload(me, to, place, stream) };
                    link.send(to, message, deadline()).unwrap();
                }
            }
            for from in others(link) {
                for (place, stream) in places() {
                    let got = link.receive(from, header(place, stream), deadline()).unwrap();
                    assert_same(&got, &payload(from, me, place, stream));
                }
            }
        }
    }
}

pub(super) fn sends_ahead(link: &mut dyn Link) {
    let me = link.rank();
    for to in others(link) {
        for microbatch in 0..AHEAD {
            link.send(to, message(microbatch, numbers(me, to, 0, 1 << 15).into_payload()), deadline()).unwrap();
        }
    }
    barrier(link);
    for from in others(link) {
        for microbatch in 0..AHEAD {
            link.receive(from, header(microbatch), deadline()).unwrap();
        }
    }
}

pub(super) fn overlaps(link: &mut dyn Link) {
    let me = link.rank();
    for to in others(link) {
        link.send(to, message(0, numbers(me, to, 0, LARGE).into_payload()), deadline()).unwrap();
    }
    // The computation: nothing here calls the link. The messages above must arrive meanwhile.
    std::thread::sleep(Duration::from_secs(2));
    barrier(link);
    for from in others(link) {
        let almost_now = Instant::now() + Duration::from_millis(300);
        link.receive(from, header(0), almost_now).unwrap();
    }
    barrier(link);
}

pub(super) fn gathers(link: &mut dyn Link) {
    let (me, ranks) = (link.rank(), link.ranks());
    let odd = [f64::NAN, -0.0, f64::INFINITY, 1.0 / 3.0, f64::MIN_POSITIVE / 8.0];
    let row = |rank: usize, round: usize| -> Vec<f64> {
        (0..(rank * 3 + round) % 7).map(|i| if i < 5 { odd[i] } else { (rank * 100 + round) as f64 }).collect()
    };
    let bits = |row: &[f64]| -> Vec<u64> { row.iter().map(|x| x.to_bits()).collect() };
    for round in 0..50 {
        if round % 10 == me {
            std::thread::sleep(Duration::from_millis(20));
        }
        let table = gather(link, &row(me, round), deadline()).unwrap();
        assert_eq!(table.len(), ranks);
        for (rank, got) in table.iter().enumerate() {
            assert_eq!(bits(got), bits(&row(rank, round)), "row of rank {rank}, round {round}");
        }
    }
}

pub(super) fn gathers_bytes(link: &mut dyn Link) {
    let bytes = |rank: usize| -> Vec<u8> { (0..rank * 5 + 1).map(|i| (i * 37 + 255 * rank) as u8).collect() };
    let me = link.rank();
    let table = link.all_gather(bytes(me), deadline()).unwrap();
    assert!(table.iter().enumerate().all(|(rank, got)| *got == bytes(rank)), "{table:?}");
    assert!(link.all_gather(Vec::new(), deadline()).unwrap().iter().all(Vec::is_empty));
}
