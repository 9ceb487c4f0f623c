//! Errors, lost ranks and transfers that do not end: all ranks learn of them in time.

use super::links::ORDERINGS;
use super::messages::{failed_after, header, on, read, send};
use super::start;
use crate::link;
use burn_pipeline::link::{Link, Message};
use burn_pipeline::payload::Boundary;
use burn_pipeline_nccl::NcclLink;
use std::time::{Duration, Instant};

/// Runs the named part of a rank's process. Returns false if the name is not one of these.
pub(super) fn part(name: &str) -> bool {
    match name {
        "waits" => waits(),
        "sends much" => sends_much(),
        "steps" => steps(),
        "aborts" => aborts(),
        "panics" => panics(),
        "beside a hang" => beside_a_hang(),
        _ => return false,
    }
    true
}

/// Waits for a failure without calling a wait of the link, and prints it.
pub(super) fn fails(link: NcclLink, began: Instant) {
    let monitor = link.monitor();
    while monitor.failure().is_none() && began.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(10));
    }
    let failure = monitor.failure().unwrap();
    drop(link);
    println!("failed after {} ms: {failure:?}", began.elapsed().as_millis());
}

/// Sends to the next rank, with a pipeline's timeout.
fn waits() {
    let (mut link, device) = link();
    let (next, began) = ((link.rank() + 1) % link.ranks(), Instant::now());
    send(&mut link, &device, next, 0, Duration::from_secs(2));
    fails(link, began);
}

/// Rank 0 sends 64 MiB to rank 1.
fn sends_much() {
    let (mut link, device) = link();
    let (deadline, began) = (Instant::now() + Duration::from_secs(20), Instant::now());
    if link.rank() == 0 {
        let payload = on(&device, vec![1.0; 1 << 24]).into_payload();
        link.send(1, Message { header: header(0), payload }, deadline).unwrap();
    }
    fails(link, began);
}

/// The link was created with a timeout of a minute. Calls pass the pipeline's timeout of two seconds.
#[test]
fn a_transfer_that_does_not_end_fails_for_all_at_the_pipelines_timeout() {
    for ranks in [2, 4] {
        let ended = start(ranks, "waits", &[("STAND_IN_SILENT_AFTER", "1:0")]).end();
        for (rank, (passed, text)) in ended.iter().enumerate() {
            let after = failed_after(text);
            assert!(*passed && (1900..10_000).contains(&after), "rank {rank}: {text}");
            assert!(text.contains("did not end in time") && text.contains("rank"), "rank {rank}: {text}");
        }
    }
}

#[test]
fn an_error_that_nccl_reports_later_ends_all_ranks_at_once() {
    for ranks in [2, 4] {
        let ended = start(ranks, "waits", &[("STAND_IN_FAILS_AFTER", "1:0")]).end();
        for (rank, (passed, text)) in ended.iter().enumerate() {
            assert!(*passed && failed_after(text) < 1900, "rank {rank}: {text}");
            assert!(text.contains("unhandled system error"), "rank {rank}: {text}");
        }
    }
}

/// Exchanges with all others until something fails.
fn steps() {
    let (mut link, device) = link();
    let others: Vec<usize> = (0..link.ranks()).filter(|&rank| rank != link.rank()).collect();
    for step in 0..1_000_000 {
        let payload = || on(&device, vec![step as f32; 20_000]).into_payload();
        let timeout = Instant::now() + Duration::from_secs(20);
        let done = others
            .iter()
            .try_for_each(|&to| link.send(to, Message { header: header(step), payload: payload() }, timeout));
        let done =
            done.and_then(|()| others.iter().try_for_each(|&from| link.receive(from, header(step), timeout).map(drop)));
        match done {
            Ok(()) => println!("step {step} "),
            Err(error) => return println!("failed: {error}"),
        }
    }
}

#[test]
fn a_killed_rank_is_named_by_all_others() {
    for ranks in [2, 4] {
        for ordering in ORDERINGS {
            let mut processes = start(ranks, "steps", &[("ORDERING", ordering), ("STAND_IN_PAUSE_MS", "5")]);
            processes.kill_after_steps(1);
            let began = Instant::now();
            for (rank, (passed, text)) in processes.end().iter().enumerate().filter(|(rank, _)| *rank != 1) {
                let failed = text.lines().find(|line| line.starts_with("failed")).unwrap_or("no error");
                assert!(*passed && failed.contains("rank 1 failed"), "rank {rank}: {text}");
            }
            assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
        }
    }
}

/// The last rank aborts while every rank has transfers in flight.
fn aborts() {
    let (mut link, device) = link();
    let (me, ranks) = (link.rank(), link.ranks());
    for to in (0..ranks).filter(|&rank| rank != me) {
        send(&mut link, &device, to, 0, Duration::from_secs(20));
    }
    let deadline = Instant::now() + Duration::from_secs(20);
    let here = link.barrier(deadline);
    let began = Instant::now();
    if me == ranks - 1 {
        link.abort("the loss is no number".to_owned());
    } else {
        let first = here.and_then(|()| link.receive(ranks - 1, header(0), deadline));
        let error = first.and_then(|_| link.receive(ranks - 1, header(1), deadline)).unwrap_err();
        println!("failed: {error}");
    }
    drop(link);
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

#[test]
fn an_abort_ends_transfers_in_flight_and_all_ranks() {
    for ranks in [2, 4] {
        for ordering in ORDERINGS {
            let ended = start(ranks, "aborts", &[("ORDERING", ordering), ("STAND_IN_PAUSE_MS", "400")]).end();
            for (rank, (passed, text)) in ended.iter().enumerate() {
                assert!(*passed, "rank {rank}: {text}");
                assert!(rank == ranks - 1 || text.contains("the loss is no number"), "rank {rank}: {text}");
            }
        }
    }
}

/// Rank 1 panics while it has transfers in flight, and the others wait for more.
fn panics() {
    let (mut link, device) = link();
    let (me, ranks) = (link.rank(), link.ranks());
    for to in (0..ranks).filter(|&rank| rank != me) {
        send(&mut link, &device, to, 0, Duration::from_secs(20));
    }
    assert!(me != 1, "a bug of the module");
    let deadline = Instant::now() + Duration::from_secs(20);
    let began = Instant::now();
    let error = link.receive(1, header(0), deadline).and_then(|_| link.receive(1, header(1), deadline)).unwrap_err();
    println!("failed after {} ms: {error}", began.elapsed().as_millis());
}

#[test]
fn a_rank_that_panics_has_failed_for_all_at_once() {
    for ranks in [2, 4] {
        let ended = start(ranks, "panics", &[("STAND_IN_PAUSE_MS", "300")]).end();
        for (rank, (passed, text)) in ended.iter().enumerate().filter(|(rank, _)| *rank != 1) {
            assert!(*passed && failed_after(text) < 2_000, "rank {rank}: {text}");
            assert!(text.contains("rank 1") && text.contains("panicked"), "rank {rank}: {text}");
        }
    }
}

/// Rank 0 sends to rank 2, whose transfers hang, and then to rank 1.
fn beside_a_hang() {
    let (mut link, device) = link();
    let (began, timeout) = (Instant::now(), Duration::from_secs(20));
    if link.rank() == 0 {
        send(&mut link, &device, 2, 0, timeout);
        std::thread::sleep(Duration::from_millis(500));
        send(&mut link, &device, 1, 1, timeout);
    }
    if link.rank() == 1 {
        assert_eq!(read(link.receive(0, header(1), began + timeout).unwrap())[0], 1.0);
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        link.abort("it has its message".to_owned());
    }
    fails(link, began);
}

#[test]
fn a_rank_whose_transfers_hang_does_not_hold_up_those_of_others() {
    for ordering in ORDERINGS {
        let ended = start(3, "beside a hang", &[("ORDERING", ordering), ("STAND_IN_SILENT_AFTER", "2:0")]).end();
        for (rank, (passed, text)) in ended.iter().enumerate() {
            assert!(*passed && text.contains("it has its message"), "rank {rank}: {text}");
        }
    }
}

/// Rank 1 has no memory for 64 MiB. Memory is allocated before anything is launched.
#[test]
fn a_rank_without_memory_for_what_it_is_offered_fails_at_once_for_all() {
    for ranks in [2, 4] {
        let ended = start(ranks, "sends much", &[("STAND_IN_MEMORY", "1:33554432")]).end();
        for (rank, (passed, text)) in ended.iter().enumerate() {
            assert!(*passed && failed_after(text) < 10_000, "rank {rank}: {text}");
            assert!(
                text.contains("between ranks 1 and 0: a tensor's memory cannot be accessed"),
                "rank {rank}: {text}"
            );
        }
    }
}
