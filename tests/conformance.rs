//! What every link must do. Each case is run by all ranks at once, each with its own end of one fresh link.

#![allow(clippy::unwrap_used, reason = "cases fail by panicking")]

mod failures;
mod groups;

use burn::tensor::{Bool, DType, Device, Int, Tensor, TensorData};
use burn_pipeline::link::{Direction, Expected, Header, Link, Message, gather};
use burn_pipeline::plan::{StageId, Transport};
use burn_pipeline::stage::{AnyTensor, Boundary, Payload, PayloadSpec, TensorKind};
use failures::{keeps_deadlines, names_the_missing, refuses_disorder, refuses_unknown_ranks, wakes_everybody};
use groups::{refuses_other_lists, serves_groups};
use std::time::{Duration, Instant};

/// A case: its name, and what each rank does.
pub type Case = (&'static str, fn(&mut dyn Link));

/// All cases. They take two ranks or more.
pub const CASES: &[Case] = &[
    ("messages keep their order and their contents", keeps_order),
    ("every kind of tensor arrives bit for bit", carries_every_kind),
    ("large messages cross each other", carries_large_messages),
    ("shapes repeat and change as they like", lets_shapes_change),
    ("what is expected and what is not arrive alike", expects),
    ("sends do not wait for receives", sends_ahead),
    ("what has come is told, and stays there", tells_what_has_come),
    ("messages travel while ranks compute", overlaps),
    ("gathers give every row to every rank", gathers),
    ("bytes are gathered", gathers_bytes),
    ("groups sum, cut, gather and hand out lists bit for bit", serves_groups),
    ("lists of a group that do not fit are refused", refuses_other_lists),
    ("a message out of order is refused", refuses_disorder),
    ("ranks that there are not are refused", refuses_unknown_ranks),
    ("a wait ends at its deadline and says what the peer is doing", keeps_deadlines),
    ("a gather names the rank that is missing", names_the_missing),
    ("a failure wakes every rank", wakes_everybody),
];

const PATIENCE: Duration = Duration::from_secs(60);

fn soon() -> Instant {
    Instant::now() + PATIENCE
}

fn header(microbatch: usize) -> Header {
    Header { stage: StageId::new(1), microbatch, direction: Direction::Forward }
}

fn message(microbatch: usize, payload: Payload) -> Message {
    Message { header: header(microbatch), payload }
}

fn others(link: &dyn Link) -> Vec<usize> {
    (0..link.ranks()).filter(|&rank| rank != link.rank()).collect()
}

/// All ranks are here; what was sent before has not necessarily arrived.
fn meet(link: &mut dyn Link) {
    link.all_gather(Vec::new(), soon()).unwrap();
}

fn numbers(from: usize, to: usize, microbatch: usize, count: usize) -> Tensor<1> {
    let seed = (from * 31 + to) * 1009 + microbatch;
    let values: Vec<f32> = (0..count).map(|i| ((seed + i) % 997) as f32 - 0.5).collect();
    Tensor::from_data(TensorData::new(values, [count]), &Device::flex())
}

fn same(payload: &Payload, expected: &Payload) {
    let read = |payload: &Payload| -> Vec<(TensorKind, DType, Vec<usize>, Vec<u8>)> {
        let tensor = |tensor: &AnyTensor| {
            let data = tensor.to_data().unwrap();
            (tensor.kind(), data.dtype(), tensor.shape().to_vec(), data.as_bytes().to_vec())
        };
        payload.tensors().map(tensor).collect()
    };
    assert_eq!(payload.parts().count(), expected.parts().count());
    assert!(read(payload) == read(expected), "another payload came");
}

fn keeps_order(link: &mut dyn Link) {
    let (me, ranks) = (link.rank(), others(link));
    for microbatch in 0..20 {
        for &to in &ranks {
            let payload = numbers(me, to, microbatch, 1 + microbatch * 300).into_payload();
            link.send(to, message(microbatch, payload), soon()).unwrap();
        }
    }
    for &from in ranks.iter().rev() {
        for microbatch in 0..20 {
            let payload = link.receive(from, header(microbatch), soon()).unwrap();
            same(&payload, &numbers(from, me, microbatch, 1 + microbatch * 300).into_payload());
        }
    }
}

fn tells_what_has_come(link: &mut dyn Link) {
    let (me, ranks) = (link.rank(), others(link));
    assert_eq!(link.arrived(&ranks, Instant::now()).unwrap(), None, "nothing was sent yet");
    meet(link);
    for &to in &ranks {
        for microbatch in [3, 1] {
            let payload = numbers(me, to, microbatch, 1000).into_payload();
            link.send(to, message(microbatch, payload), soon()).unwrap();
        }
    }
    for &from in ranks.iter().rev() {
        for microbatch in [3, 1] {
            let told = link.arrived(&[from], soon()).unwrap();
            // A link may not be able to tell; what it tells is so, as often as it is asked.
            assert!(told.is_none_or(|told| told == (from, header(microbatch))), "{told:?}");
            assert_eq!(link.arrived(&[from], Instant::now()).unwrap(), told);
            let payload = link.receive(from, header(microbatch), soon()).unwrap();
            same(&payload, &numbers(from, me, microbatch, 1000).into_payload());
        }
    }
    assert_eq!(link.arrived(&ranks, Instant::now() + Duration::from_millis(5)).unwrap(), None, "all was taken");
    meet(link);
}

/// Floats of every width, integers, booleans; no elements, no dimensions, and forms in between.
pub fn mixed_payload() -> Payload {
    let device = Device::flex();
    let x = Tensor::<2>::from_floats([[f32::MIN_POSITIVE / 2.0, -0.0, f32::INFINITY], [1e-8, 0.1, -3.5]], &device);
    let ids = Tensor::<1, Int>::from_ints([i32::MAX, i32::MIN, -1, 0, 7], &device);
    let mask: Tensor<1, Bool> = ids.clone().greater_elem(0);
    let empty = Tensor::<3>::zeros([4, 0, 3], &device);
    let casts = vec![DType::F64, DType::F16, DType::BF16];
    let wide: Vec<AnyTensor> = casts.into_iter().map(|dtype| AnyTensor::new(x.clone().cast(dtype))).collect();
    let ints = [DType::I64, DType::I16, DType::I8, DType::U32, DType::U8];
    let ints: Vec<AnyTensor> = ints.into_iter().map(|dtype| AnyTensor::new(ids.clone().cast(dtype))).collect();
    ((Some(x), None::<Tensor<1>>), (ids, mask), (empty, wide), ints, Vec::<Tensor<1>>::new()).into_payload()
}

fn carries_every_kind(link: &mut dyn Link) {
    for to in others(link) {
        link.send(to, message(0, mixed_payload()), soon()).unwrap();
        link.send(to, message(1, Payload::default()), soon()).unwrap();
    }
    for from in others(link) {
        same(&link.receive(from, header(0), soon()).unwrap(), &mixed_payload());
        same(&link.receive(from, header(1), soon()).unwrap(), &Payload::default());
    }
}

/// 12 MiB: no transport takes that eagerly.
const LARGE: usize = 3 << 20;

fn carries_large_messages(link: &mut dyn Link) {
    let me = link.rank();
    for to in others(link) {
        link.send(to, message(0, numbers(me, to, 0, LARGE).into_payload()), soon()).unwrap();
    }
    for from in others(link) {
        same(&link.receive(from, header(0), soon()).unwrap(), &numbers(from, me, 0, LARGE).into_payload());
    }
}

/// Elements of the messages of one stream, one after the other: repeated, changed, changed back, none at all, by turns.
const LENGTHS: [usize; 24] =
    [5, 5, 5, 5, 9, 5, 5, 5, 5, 0, 0, 0, 0, 7, 0, 7, 0, 40_000, 40_000, 40_000, 40_000, 5, 5, 5];

fn lets_shapes_change(link: &mut dyn Link) {
    let me = link.rank();
    // Two streams to and from each rank, with lengths of their own, and a form now and then.
    let streams = [(StageId::new(1), Direction::Forward), (StageId::new(0), Direction::Backward)];
    let payload = |from: usize, to: usize, place: usize, stream: usize| {
        let length = LENGTHS[(place + 3 * stream) % LENGTHS.len()];
        let second = (place % 5 > 1).then(|| numbers(from, to, place + 100, length / 2));
        (numbers(from, to, place, length), second).into_payload()
    };
    let header = |place: usize, stream: usize| {
        let (stage, direction) = streams[stream];
        Header { stage, microbatch: place * 7, direction }
    };
    // All ahead of their receives, then each awaited before the next: memory waits for messages, and messages for it.
    for ahead in [LENGTHS.len(), 1] {
        for first in (0..LENGTHS.len()).step_by(ahead) {
            let places = || (first..first + ahead).flat_map(|place| [(place, 0), (place, 1)]);
            for to in others(link) {
                for (place, stream) in places() {
                    let message = Message { header: header(place, stream), payload: payload(me, to, place, stream) };
                    link.send(to, message, soon()).unwrap();
                }
            }
            for from in others(link) {
                for (place, stream) in places() {
                    let got = link.receive(from, header(place, stream), soon()).unwrap();
                    same(&got, &payload(from, me, place, stream));
                }
            }
        }
    }
}

/// Lists of two tensors of these sizes are expected, then come, and lists of other sizes; then others are expected.
fn expects(link: &mut dyn Link) {
    let (me, ranks) = (link.rank(), link.ranks());
    let list = |from, to, microbatch, size| vec![numbers(from, to, microbatch, size), numbers(to, from, microbatch, 3)];
    let mut microbatch = 0;
    for (expected, sizes) in
        [(5, &[5, 5, 7, 7, 7, 5][..]), (5, &[5]), (9, &[9, 9]), (0, &[0, 4]), (4, &[4, 4, 0]), (6, &[])]
    {
        let form = PayloadSpec::of_payload(&list(0, 1, 0, expected).into_payload());
        let pairs = (0..ranks).flat_map(|from| (0..ranks).map(move |to| (from, to)));
        let pairs = pairs.filter(|(from, to)| from != to && [from, to].contains(&&me));
        let messages: Vec<Expected> =
            pairs.map(|(from, to)| Expected { from, to, header: header(0), form: form.clone() }).collect();
        link.expect(&messages).unwrap();
        meet(link);
        for &size in sizes {
            for to in others(link) {
                let payload = list(me, to, microbatch, size).into_payload();
                link.send(to, message(microbatch, payload), soon()).unwrap();
            }
            for from in others(link) {
                let payload = link.receive(from, header(microbatch), soon()).unwrap();
                same(&payload, &list(from, me, microbatch, size).into_payload());
            }
            microbatch += 1;
        }
    }
}

fn sends_ahead(link: &mut dyn Link) {
    let ahead = match link.capabilities().transport {
        Transport::Rendezvous => return,
        Transport::Buffered(payloads) => payloads,
        Transport::Unbounded => 64,
    };
    let me = link.rank();
    for to in others(link) {
        for microbatch in 0..ahead {
            link.send(to, message(microbatch, numbers(me, to, 0, 1 << 15).into_payload()), soon()).unwrap();
        }
    }
    meet(link);
    for from in others(link) {
        for microbatch in 0..ahead {
            link.receive(from, header(microbatch), soon()).unwrap();
        }
    }
}

fn overlaps(link: &mut dyn Link) {
    if !link.capabilities().overlaps {
        return;
    }
    let me = link.rank();
    for to in others(link) {
        link.send(to, message(0, numbers(me, to, 0, LARGE).into_payload()), soon()).unwrap();
    }
    // The computation: nothing here calls the link. What was sent above must then be here.
    std::thread::sleep(Duration::from_secs(2));
    meet(link);
    for from in others(link) {
        let almost_now = Instant::now() + Duration::from_millis(300);
        link.receive(from, header(0), almost_now).unwrap();
    }
    meet(link);
}

fn gathers(link: &mut dyn Link) {
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
        let table = gather(link, &row(me, round), soon()).unwrap();
        assert_eq!(table.len(), ranks);
        for (rank, got) in table.iter().enumerate() {
            assert_eq!(bits(got), bits(&row(rank, round)), "row of rank {rank}, round {round}");
        }
    }
}

fn gathers_bytes(link: &mut dyn Link) {
    let bytes = |rank: usize| -> Vec<u8> { (0..rank * 5 + 1).map(|i| (i * 37 + 255 * rank) as u8).collect() };
    let me = link.rank();
    let table = link.all_gather(bytes(me), soon()).unwrap();
    assert!(table.iter().enumerate().all(|(rank, got)| *got == bytes(rank)), "{table:?}");
    assert!(link.all_gather(Vec::new(), soon()).unwrap().iter().all(Vec::is_empty));
}
