//! The conformance suite over threads, with and without delays; `tests/mpi` runs it over processes.

use crate::cases::{Case, Text};
use crate::parity::builder;
use burn::tensor::{Device, Tensor};
use burn_pipeline::cost::{LinkCost, LinkCosts, LinkOverride, ProfileError};
use burn_pipeline::link::conformance::run_on_threads;
use burn_pipeline::link::{
    Activity, Admission, Delayed, Header, Link, LinkError, Message, MessageKind, Rendezvous, TcpLink, ThreadLink,
    Threads,
};
use burn_pipeline::payload::{Boundary, Payload};
use burn_pipeline::plan::{Op, StageId, Task};
use burn_pipeline::schedule::{GPipe, Size};
use pipeline_tests::device::{device, few};
use pipeline_tests::on_device::OnDevice;
use std::time::{Duration, Instant};

/// Runs every case, on links from `wrap`.
fn conform<L: Link>(wrap: impl Fn(ThreadLink) -> L + Sync) {
    for ranks in few(vec![5, 3, 2], 1) {
        run_on_threads(ranks, || {
            let (threads, wrap) = (Threads::new(ranks), &wrap);
            move |rank| wrap(threads.link(rank, device()))
        });
    }
}

#[test]
fn threads_are_a_link() {
    if device() == Device::flex() {
        return conform(|link| link);
    }
    conform(|link| OnDevice::new(link, device()));
}

#[test]
fn who_waits_too_long_is_told_of_the_rank_at_the_end_of_all_waits() {
    let threads = Threads::new(4);
    let header = |stage| Header { stage: StageId::new(stage), microbatch: 0, kind: MessageKind::Activation };
    let [mut first, mut second, mut third, mut last] = [0, 1, 2, 3].map(|rank| threads.link(rank, Device::flex()));
    second.set_activity(Activity::Waiting(header(2), 2));
    third.set_activity(Activity::Waiting(header(3), 3));
    last.set_activity(Activity::Task(Task::new(3, Op::Forward, 0)));
    let mut reported =
        || first.receive(1, header(1), Instant::now() + Duration::from_millis(20)).unwrap_err().to_string();
    let said = reported();
    assert!(said.contains("from rank 2; rank 2 is itself waiting") && said.contains("rank 3 is running 3F0"), "{said}");
    // Each rank of a cycle of waits is named once.
    last.set_activity(Activity::Waiting(header(0), 1));
    assert_eq!(reported().matches("rank 3 is itself waiting").count(), 1);
}

#[test]
fn a_delayed_link_is_a_link() {
    let slow = LinkCosts { default: LinkCost { latency: 2e-3, bandwidth: Some(1e10) }, between: Vec::new() };
    conform(|link| Delayed::new(Box::new(link), slow.clone()).unwrap());
}

const MINUTE: Duration = Duration::from_secs(60);

fn header(microbatch: usize) -> Header {
    Header { stage: StageId::new(1), microbatch, kind: MessageKind::Activation }
}

/// 1000 bytes.
fn message(microbatch: usize) -> Message {
    let payload = Tensor::<1>::full([250], microbatch as f32, &Device::flex()).into_payload();
    Message { header: header(microbatch), payload }
}

/// Both ends of a link of two ranks with these costs.
fn ends(network: &LinkCosts) -> [Delayed; 2] {
    let threads = Threads::new(2);
    [0, 1].map(|rank| Delayed::new(Box::new(threads.link(rank, Device::flex())), network.clone()).unwrap())
}

#[test]
fn messages_take_the_latency_and_queue_for_the_bandwidth() {
    let one_way = LinkOverride { from: 0, to: 1, latency: 0.06, bandwidth: Some(50e3) };
    let [mut sender, mut receiver] = ends(&LinkCosts { between: vec![one_way], ..LinkCosts::default() });
    let began = Instant::now();
    for microbatch in 0..3 {
        sender.send(1, message(microbatch), began + MINUTE).unwrap();
    }
    // 20 ms on the link each, one after the other, and 60 ms of latency.
    for microbatch in 0..3 {
        let payload = receiver.receive(0, header(microbatch), began + MINUTE).unwrap();
        let took = began.elapsed();
        let due = Duration::from_millis(80 + 20 * microbatch as u64);
        assert!(took >= due, "message {microbatch} came after {took:?}");
        let sum = Tensor::<1>::from_payload(payload).unwrap().sum().into_scalar::<f32>();
        assert_eq!(sum, 250.0 * microbatch as f32);
    }
}

#[test]
fn the_sender_goes_on_and_the_other_way_is_as_fast_as_the_link_below() {
    let one_way = LinkOverride { from: 0, to: 1, latency: 3600.0, bandwidth: Some(50e3) };
    let [mut sender, mut receiver] = ends(&LinkCosts { between: vec![one_way], ..LinkCosts::default() });
    let deadline = Instant::now() + MINUTE;
    (0..3).for_each(|microbatch| sender.send(1, message(microbatch), deadline).unwrap());
    receiver.send(0, message(7), deadline).unwrap();
    sender.receive(1, header(7), deadline).unwrap();
}

#[test]
fn what_is_not_due_at_the_deadline_comes_later_and_a_failure_is_heard_before_it_is_due() {
    let latency = Duration::from_millis(300);
    let slow =
        LinkCosts { default: LinkCost { latency: latency.as_secs_f64(), bandwidth: None }, ..LinkCosts::default() };
    let [mut sender, mut receiver] = ends(&slow);
    let sent = Instant::now();
    sender.send(1, message(0), sent + MINUTE).unwrap();
    match receiver.receive(0, header(0), Instant::now() + latency / 10) {
        Err(early) => {
            assert!(matches!(early, LinkError::Deadline { rank: 1, peer: 0, .. }), "{early}");
            receiver.receive(0, header(0), Instant::now() + MINUTE).unwrap();
        }
        // Nothing ran here until the message was due.
        Ok(_) => assert!(sent.elapsed() >= latency),
    }

    let hour = LinkCosts { default: LinkCost { latency: 3600.0, bandwidth: None }, ..LinkCosts::default() };
    let [mut sender, mut receiver] = ends(&hour);
    sender.send(1, message(0), Instant::now() + MINUTE).unwrap();
    sender.abort("no more".to_owned());
    let failed = receiver.receive(0, header(0), Instant::now() + MINUTE).unwrap_err();
    assert!(matches!(failed, LinkError::Peer(ref failure) if failure.rank == 0), "{failed}");
}

#[test]
fn an_end_that_is_not_delayed_and_links_that_are_none_are_refused() {
    let threads = Threads::new(2);
    let mut plain = threads.link(0, Device::flex());
    let mut delayed = Delayed::new(Box::new(threads.link(1, Device::flex())), LinkCosts::default()).unwrap();
    plain.send(1, message(0), Instant::now() + MINUTE).unwrap();
    let error = delayed.receive(0, header(0), Instant::now() + MINUTE).unwrap_err().to_string();
    assert!(error.contains("wrap the links of all ranks in `Delayed`"), "{error}");
    plain.send(1, Message { header: header(1), payload: Payload::default() }, Instant::now() + MINUTE).unwrap();
    assert!(delayed.receive(0, header(1), Instant::now() + MINUTE).is_err());

    let negative = LinkCosts { default: LinkCost { latency: -1.0, bandwidth: None }, ..LinkCosts::default() };
    let refused = Delayed::new(Box::new(plain), negative).unwrap_err();
    assert!(matches!(refused, ProfileError::LinkCost { field: "latency", .. }), "{refused}");
}

#[test]
fn the_longest_timeout_is_a_very_long_one() {
    let builder = builder::<Text>(&GPipe, Size::new(2, 2)).timeout(Duration::MAX);
    builder.build().unwrap().step(Text::new(2).batch(), 1e-2).unwrap();
    let admission = Admission::default();
    let alone = Rendezvous { rank: 0, ranks: 1, address: ("127.0.0.1".to_owned(), 0), admission };
    TcpLink::connect(&alone, Device::flex(), Duration::MAX).unwrap();
}
