//! Cases of failures: they are named, and nobody waits beyond a deadline.

use super::material::{TIMEOUT, assert_same, barrier, deadline, header, message, numbers, others};
use crate::link::error::LinkError;
use crate::link::link_trait::Link;
use crate::link::monitor::Activity;
use crate::payload::{Boundary, Payload};
use burn_pipeline_plan::plan::{Op, Task};
use std::time::{Duration, Instant};

pub(super) fn refuses_disorder(link: &mut dyn Link) {
    let (me, ranks) = (link.rank(), link.ranks());
    let (next, before) = ((me + 1) % ranks, (me + ranks - 1) % ranks);
    link.send(next, message(4, numbers(me, next, 0, 3).into_payload()), deadline()).unwrap();
    let error = link.receive(before, header(5), deadline()).unwrap_err();
    let (expected, got) = (header(5).to_string(), header(4).to_string());
    assert_eq!(error, LinkError::Order { rank: me, peer: before, expected, got });
    barrier(link);
}

pub(super) fn refuses_unknown_ranks(link: &mut dyn Link) {
    let ranks = link.ranks();
    let missing = LinkError::NoSuchRank { rank: ranks, ranks };
    assert_eq!(link.send(ranks, message(0, Payload::default()), deadline()).unwrap_err(), missing);
    assert_eq!(link.receive(ranks, header(0), deadline()).unwrap_err(), missing);
    barrier(link);
}

pub(super) fn keeps_deadlines(link: &mut dyn Link) {
    let wait = Duration::from_secs(1);
    if link.rank() == 0 {
        barrier(link);
        let began = Instant::now();
        let error = link.receive(1, header(3), began + wait).unwrap_err();
        let took = began.elapsed();
        assert!(took >= wait && took < wait * 10, "{took:?}");
        let LinkError::Deadline { rank: 0, peer: 1, what, peer_state, .. } = &error else { panic!("{error}") };
        assert_eq!((what.as_str(), peer_state.as_str()), (header(3).to_string().as_str(), "is running 1F7"));
    } else {
        link.set_activity(Activity::Task(Task::new(1, Op::Forward, 7)));
        barrier(link);
    }
    // A passed deadline breaks nothing: the others come here while rank 0 still waits.
    barrier(link);
}

/// How often the last rank gives rank 0 something to do; the pauses together are longer than a wait.
const TURNS: usize = 4;

/// The last rank works for longer than a wait. Then rank 0 works and waits by turns, for longer than a wait as well.
/// Then the last rank is lost, while all others do slow work, as far as anybody knows.
pub(super) fn waits_for_slow_work(link: &mut dyn Link) {
    let (me, last, wait) = (link.rank(), link.ranks() - 1, Duration::from_secs(1));
    let receive = |link: &mut dyn Link, from, index| link.receive(from, header(index), Instant::now() + wait).map(drop);
    link.set_activity(Activity::Saving);
    barrier(link);
    if me == last {
        std::thread::sleep(wait * 8 / 5);
        others(link).into_iter().for_each(|to| link.send(to, message(0, Payload::default()), deadline()).unwrap());
        link.set_activity(Activity::Task(Task::new(1, Op::Forward, 7)));
        for turn in 0..TURNS {
            std::thread::sleep(wait * 2 / 5);
            link.send(0, message(turn, Payload::default()), deadline()).unwrap();
        }
        barrier(link);
        std::thread::sleep(wait * 4);
        return;
    }
    receive(link, last, 0).unwrap();
    if me == 0 {
        (0..TURNS).for_each(|turn| receive(link, last, turn).unwrap());
        others(link).into_iter().for_each(|to| link.send(to, message(8, Payload::default()), deadline()).unwrap());
    } else {
        receive(link, 0, 8).unwrap();
    }
    barrier(link);
    let error = receive(link, last, 9).unwrap_err();
    assert!(matches!(&error, LinkError::Deadline { peer, .. } if *peer == last), "{error}");
}

pub(super) fn names_the_missing(link: &mut dyn Link) {
    let last = link.ranks() - 1;
    barrier(link);
    if link.rank() == last {
        std::thread::sleep(Duration::from_secs(3));
        return;
    }
    let error = link.all_gather(vec![1], Instant::now() + Duration::from_secs(1)).unwrap_err();
    assert!(matches!(&error, LinkError::Deadline { peer, .. } if *peer == last), "{error}");
}

pub(super) fn notices_who_leaves(link: &mut dyn Link) {
    let (me, last) = (link.rank(), link.ranks() - 1);
    barrier(link);
    if me == last {
        for to in others(link) {
            link.send(to, message(0, numbers(me, to, 0, 1 << 16).into_payload()), deadline()).unwrap();
        }
        // Its end is dropped when this returns.
        return;
    }
    let began = Instant::now();
    // Messages that it sent before still arrive.
    assert_same(&link.receive(last, header(0), deadline()).unwrap(), &numbers(last, me, 0, 1 << 16).into_payload());
    let error = link.receive(last, header(1), deadline()).unwrap_err();
    assert_eq!(error, LinkError::Left { rank: me, peer: last, what: header(1).to_string() });
    assert_eq!(link.probe(&[last], deadline()).unwrap(), None);
    // The others go on with each other. Ranks that are done leave as well.
    assert!(matches!(link.all_gather(Vec::new(), deadline()), Err(LinkError::Left { .. })));
    assert!(began.elapsed() < TIMEOUT / 4, "it was noticed after {:?}", began.elapsed());
}

pub(super) fn wakes_everybody(link: &mut dyn Link) {
    let last = link.ranks() - 1;
    tell(link, last, 9);
    let began = Instant::now();
    if link.rank() == last {
        link.abort("the loss is no number".to_owned());
    } else if link.rank().is_multiple_of(2) {
        expect_failure(link.receive(last, header(0), deadline()).map(drop), last);
    } else {
        expect_failure(link.all_gather(Vec::new(), deadline()).map(drop), last);
    }
    assert!(began.elapsed() < TIMEOUT / 4, "the failure came after {:?}", began.elapsed());
    assert_eq!(link.monitor().failure().map(|failure| failure.rank), Some(last));
    let to = usize::from(link.rank() == 0);
    expect_failure(link.send(to, message(0, Payload::default()), deadline()), last);
    expect_failure(link.all_gather(Vec::new(), deadline()).map(drop), last);
}

/// A link that closes at any failure may do so here.
pub(super) fn goes_on_after_an_interruption(link: &mut dyn Link) {
    let (me, ranks) = (link.rank(), link.ranks());
    let (last, next, before) = (ranks - 1, (me + 1) % ranks, (me + ranks - 1) % ranks);
    tell(link, last, 49);
    for round in 0..5 {
        // Nobody receives these. The last rank may have failed before others have sent them.
        let send = |to| link.send(to, message(50, numbers(me, to, round, 3).into_payload()), deadline());
        let sent = (0..ranks).try_for_each(send);
        let waited = sent.and_then(|()| match me {
            _ if me == last => {
                link.interrupt("a broken loss".to_owned());
                link.send(0, message(51, Payload::default()), deadline())
            }
            _ if me % 2 == 0 => link.all_gather(vec![1], deadline()).map(drop),
            _ => {
                link.receive(last, header(50), deadline())?;
                link.receive(last, header(52), deadline()).map(drop)
            }
        });
        match waited.unwrap_err() {
            LinkError::Peer(failure) => return assert_eq!(failure.rank, last),
            LinkError::Interrupted(failure) => {
                assert_eq!((failure.rank, failure.message.as_str()), (last, "a broken loss"));
            }
            other => panic!("{other}"),
        }
        link.recover(deadline()).unwrap();
        link.send(next, message(round, numbers(me, next, round, 5).into_payload()), deadline()).unwrap();
        let received = link.receive(before, header(round), deadline()).unwrap();
        assert_same(&received, &numbers(before, me, round, 5).into_payload());
        let rows = link.all_gather(vec![me as u8, round as u8], deadline()).unwrap();
        assert_eq!(rows, (0..ranks).map(|rank| vec![rank as u8, round as u8]).collect::<Vec<_>>());
        // The last rank fails again at once, and interrupts no rank that still waits for its rows.
    }
}

/// Tells a rank that this one is connected. That rank waits for all others: its failure may overtake earlier messages,
/// even the last ones by which the others connect.
fn tell(link: &mut dyn Link, to: usize, index: usize) {
    if link.rank() == to {
        others(link).into_iter().for_each(|from| drop(link.receive(from, header(index), deadline()).unwrap()));
    } else {
        link.send(to, message(index, Payload::default()), deadline()).unwrap();
    }
}

fn expect_failure(result: Result<(), LinkError>, failed: usize) {
    let Err(LinkError::Peer(failure)) = result else { panic!("{result:?}") };
    assert_eq!((failure.rank, failure.message.as_str()), (failed, "the loss is no number"));
}
