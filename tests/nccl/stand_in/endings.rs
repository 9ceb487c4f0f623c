//! Dropped links: what was sent arrives, the wait for it is bounded, and the other ranks continue.

use super::failures::fails;
use super::links::ORDERINGS;
use super::messages::{failed_after, header, on, read, send};
use super::start;
use crate::link;
use burn_pipeline::link::{FlatCollective, Link, LinkError};
use burn_pipeline::payload::AnyTensor;
use std::time::{Duration, Instant};

/// Runs the named part of a rank's process. Returns false if the name is not one of these.
pub(super) fn part(name: &str) -> bool {
    match name {
        "leaves at once" => leaves_at_once(),
        "drops" => drops(),
        "drops a collective" => drops_a_collective(),
        "leaves unread" => leaves_unread(),
        "leaves before" => leaves_before(),
        "refuses" => refuses(),
        _ => return false,
    }
    true
}

/// Rank 0 leaves right after its last send; the others receive late.
fn leaves_at_once() {
    let (mut link, device) = link();
    let timeout = Duration::from_secs(20);
    let messages: usize = std::env::var("MESSAGES").unwrap().parse().unwrap();
    if link.rank() == 0 {
        for place in 0..messages {
            (1..link.ranks()).for_each(|to| send(&mut link, &device, to, place, timeout));
        }
        return;
    }
    std::thread::sleep(Duration::from_millis(300));
    for place in 0..messages {
        let got = read(link.receive(0, header(place), Instant::now() + timeout).unwrap());
        assert_eq!(got, vec![place as f32; 40_000]);
    }
}

/// Also if they take longer than a communicator may take to end.
#[test]
fn a_link_that_is_dropped_with_transfers_in_flight_delivers_them() {
    std::thread::scope(|scope| {
        for ordering in ORDERINGS {
            for (ranks, messages, pause) in [(4, "10", "20"), (2, "2", "5500")] {
                let more = [("ORDERING", ordering), ("MESSAGES", messages), ("STAND_IN_PAUSE_MS", pause)];
                scope.spawn(move || start(ranks, "leaves at once", &more).all_pass());
            }
        }
    });
}

/// Drops the link while its transfers do not end.
fn drops() {
    let (mut link, device) = link();
    let next = (link.rank() + 1) % link.ranks();
    send(&mut link, &device, next, 0, Duration::from_secs(1));
    std::thread::sleep(Duration::from_millis(200));
    let began = Instant::now();
    drop(link);
    println!("failed after {} ms: dropped", began.elapsed().as_millis());
}

#[test]
fn dropping_a_link_whose_transfers_do_not_end_gives_up_at_the_pipelines_timeout() {
    let ended = start(2, "drops", &[("STAND_IN_SILENT_AFTER", "1:0")]).end();
    for (rank, (passed, text)) in ended.iter().enumerate() {
        // Not before the timeout of this rank or of the other, of which 0.2 s have passed.
        assert!(*passed && (500..4_000).contains(&failed_after(text)), "rank {rank}: {text}");
    }
}

/// The GPU no longer answers: the memory is leaked, and the rank continues.
#[test]
fn dropping_a_link_whose_transfers_cannot_be_aborted_gives_up_later() {
    let ended = start(2, "drops", &[("STAND_IN_STUCK_AFTER", "1:0")]).end();
    for (rank, (passed, text)) in ended.iter().enumerate() {
        let after = failed_after(text);
        assert!(*passed && (500..12_000).contains(&after) && (rank == 0 || after > 5_000), "rank {rank}: {text}");
    }
}

/// Rank 0 drops the link after it has begun a collective that rank 1 never begins.
fn drops_a_collective() {
    let (mut link, device) = link();
    link.collectives().unwrap().form(&[0, 1], Instant::now() + Duration::from_secs(3)).unwrap();
    let began = Instant::now();
    if link.rank() == 1 {
        return fails(link, began);
    }
    let tensor = AnyTensor::new(on(&device, vec![1.0; 64]));
    link.collectives().unwrap().begin(FlatCollective::AllReduce, "a sum".to_owned(), tensor).unwrap();
    drop(link);
    println!("failed after {} ms: dropped", began.elapsed().as_millis());
}

/// Nothing is in flight, and no rank fails or leaves: only the dropped link's own deadline ends it.
#[test]
fn dropping_a_link_with_a_collective_that_never_starts_gives_up_at_the_pipelines_timeout() {
    let ended = start(2, "drops a collective", &[]).end();
    for (rank, (passed, text)) in ended.iter().enumerate() {
        assert!(*passed && (2_000..10_000).contains(&failed_after(text)), "rank {rank}: {text}");
    }
    let text = &ended[1].1;
    assert!(text.contains("when the link was dropped did not end in time"), "{text}");
}

/// Rank 1 leaves without having received anything, while the others continue to send to it and to each other.
fn leaves_unread() {
    let (mut link, device) = link();
    let (me, timeout) = (link.rank(), Duration::from_secs(5));
    link.barrier(Instant::now() + timeout).unwrap();
    if me == 1 {
        std::thread::sleep(Duration::from_millis(20));
        return;
    }
    for place in 0..100 {
        send(&mut link, &device, 1, place, timeout);
        std::thread::sleep(Duration::from_micros(500));
    }
    let others: Vec<usize> = (0..link.ranks()).filter(|&rank| rank != me && rank != 1).collect();
    for place in 0..5 {
        others.iter().for_each(|&to| send(&mut link, &device, to, place, timeout));
        for &from in &others {
            let got = read(link.receive(from, header(place), Instant::now() + timeout).unwrap());
            assert_eq!(got, vec![place as f32; 40_000]);
        }
    }
    let began = Instant::now();
    drop(link);
    println!("failed after {} ms: dropped", began.elapsed().as_millis());
}

#[test]
fn ranks_go_on_without_one_that_has_left_with_messages_unread() {
    for ordering in ORDERINGS {
        let ended = start(4, "leaves unread", &[("ORDERING", ordering)]).end();
        for (rank, (passed, text)) in ended.iter().enumerate() {
            assert!(*passed && (rank == 1 || failed_after(text) < 4_000), "rank {rank}: {text}");
        }
    }
}

/// The group of all ranks.
fn all(link: &mut impl Link, deadline: Instant) -> Vec<usize> {
    let members: Vec<usize> = (0..link.ranks()).collect();
    link.collectives().unwrap().form_sets(std::slice::from_ref(&members), deadline).unwrap();
    members
}

/// Rank 1 leaves; the others start a sum with it before or after that.
fn leaves_before() {
    let (mut link, device) = link();
    let deadline = Instant::now() + Duration::from_secs(20);
    let members = all(&mut link, deadline);
    if link.rank() == 1 {
        std::thread::sleep(Duration::from_millis(300));
        return;
    }
    std::thread::sleep(Duration::from_millis(600 * (link.rank() / 2) as u64));
    let began = Instant::now();
    let tensor = AnyTensor::new(on(&device, vec![1.0; 64]));
    let error = link.collectives().unwrap().sum(0, &members, vec![Some(tensor)], deadline).unwrap_err();
    println!("failed after {} ms: {error}", began.elapsed().as_millis());
}

#[test]
fn a_sum_with_a_rank_that_has_left_ends_at_once() {
    for ordering in ORDERINGS {
        let ended = start(4, "leaves before", &[("ORDERING", ordering)]).end();
        for (rank, (passed, text)) in ended.iter().enumerate().filter(|(rank, _)| *rank != 1) {
            assert!(*passed && failed_after(text) < 2_000, "rank {rank}: {text}");
            // Late ranks may find that others have given up and left as well.
            assert!(text.contains(", which has left the job"), "rank {rank}: {text}");
            assert!(rank != 0 || text.contains("from rank 1"), "{text}");
        }
    }
}

/// Every rank sums a different list, and leaves with the error.
fn refuses() {
    let (mut link, device) = link();
    let deadline = Instant::now() + Duration::from_secs(20);
    let members = all(&mut link, deadline);
    let list = (0..=link.rank()).map(|_| Some(AnyTensor::new(on(&device, vec![1.0; 64]))));
    let error = link.collectives().unwrap().sum(0, &members, list.collect(), deadline).unwrap_err();
    assert!(matches!(error, LinkError::Lists { .. }), "{error}");
}

/// The first rank to learn it leaves before the last one learns it.
#[test]
fn a_sum_of_lists_that_differ_is_refused_on_all_ranks_though_each_leaves_at_once() {
    for _ in 0..5 {
        start(4, "refuses", &[]).all_pass();
    }
}
