//! The link over the stand-in: what it delivers, and how it ends.

use super::start;
use super::storm::{header, on, read, storm};
use crate::{conform, link, tensors};
use burn_pipeline::link::conformance::CASES;
use burn_pipeline::link::{Link, Message};
use burn_pipeline::stage::Boundary;
use burn_pipeline_nccl::NcclLink;
use std::time::{Duration, Instant};

/// What a rank's process does, by name; `false` if the name is not one of these.
pub(crate) fn part(name: &str) -> bool {
    match name {
        "storm" => storm(),
        "conformance" => (0..CASES.len()).for_each(conform::case),
        "collectives" => tensors::collectives(64),
        "waits" => waits(),
        "steps" => steps(),
        "aborts" => aborts(),
        "leaves at once" => leaves_at_once(),
        "drops" => drops(),
        "panics" => panics(),
        "leaves unread" => leaves_unread(),
        _ => return false,
    }
    true
}

const ORDERINGS: [&str; 2] = ["host", "context"];

#[test]
fn nccl_is_a_link() {
    // At once: some cases wait for most of their time.
    std::thread::scope(|scope| {
        for (ranks, ordering) in [(2, "host"), (2, "context"), (4, "host"), (4, "context")] {
            scope.spawn(move || start(ranks, "conformance", &[("ORDERING", ordering)]).all_pass());
        }
    });
}

#[test]
fn transfers_of_all_ranks_at_once_arrive_in_order_and_sums_between_them_are_right() {
    for ranks in [2, 4] {
        for ordering in ORDERINGS {
            start(ranks, "storm", &[("ORDERING", ordering)]).all_pass();
        }
    }
}

#[test]
fn groups_sum_share_join_and_spread() {
    for ranks in [2, 4] {
        for ordering in ORDERINGS {
            start(ranks, "collectives", &[("ORDERING", ordering)]).all_pass();
        }
    }
}

/// The negative control: the stand-in notices where the link keeps no order.
#[test]
fn without_order_the_stand_in_ends_the_process() {
    // Transfers take so long that what they bring is read before them.
    let ended = start(2, "storm", &[("ORDERING", "unchecked"), ("STAND_IN_PAUSE_MS", "100")]).end();
    assert!(
        ended.iter().any(|(passed, text)| !passed && text.contains("memory is used before its event")),
        "{ended:?}"
    );
}

fn send(link: &mut NcclLink, device: &burn::tensor::Device, to: usize, place: usize, timeout: Duration) {
    let payload = on(device, vec![place as f32; 40_000]).into_payload();
    link.send(to, Message { header: header(place), payload }, Instant::now() + timeout).unwrap();
}

/// Sends to the next rank, with the timeout of a pipeline, and waits for a failure without a wait of its own.
fn waits() {
    let (mut link, device) = link();
    let next = (link.rank() + 1) % link.ranks();
    let began = Instant::now();
    send(&mut link, &device, next, 0, Duration::from_secs(2));
    let monitor = link.monitor();
    while monitor.failure().is_none() && began.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(10));
    }
    let failure = monitor.failure().unwrap();
    drop(link);
    println!("failed after {} ms: {failure:?}", began.elapsed().as_millis());
}

fn failed_after(text: &str) -> u64 {
    let after = text.lines().find_map(|line| line.strip_prefix("failed after ")?.split(' ').next());
    after.unwrap_or_else(|| panic!("{text}")).parse().unwrap()
}

/// The link was made with a timeout of a minute. Calls tell the pipeline's, of two seconds.
#[test]
fn a_transfer_that_does_not_end_fails_for_all_at_the_pipelines_timeout() {
    for ranks in [2, 4] {
        let ended = start(ranks, "waits", &[("STAND_IN_SILENT_AFTER", "1:1")]).end();
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
        let ended = start(ranks, "waits", &[("STAND_IN_FAILS_AFTER", "1:1")]).end();
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

/// Rank 0 leaves right after its last send; the others receive late.
fn leaves_at_once() {
    let (mut link, device) = link();
    let timeout = Duration::from_secs(20);
    if link.rank() == 0 {
        for place in 0..10 {
            (1..link.ranks()).for_each(|to| send(&mut link, &device, to, place, timeout));
        }
        return;
    }
    std::thread::sleep(Duration::from_millis(300));
    for place in 0..10 {
        let got = read(link.receive(0, header(place), Instant::now() + timeout).unwrap());
        assert_eq!(got, vec![place as f32; 40_000]);
    }
}

#[test]
fn a_link_that_is_dropped_with_transfers_in_flight_delivers_them() {
    for ranks in [2, 4] {
        for ordering in ORDERINGS {
            start(ranks, "leaves at once", &[("ORDERING", ordering), ("STAND_IN_PAUSE_MS", "20")]).all_pass();
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
    let ended = start(2, "drops", &[("STAND_IN_SILENT_AFTER", "1:1")]).end();
    for (rank, (passed, text)) in ended.iter().enumerate() {
        // Not before the timeout, of which 0.2 s have passed, or the other rank's; and no memory is freed before that.
        assert!(*passed && (500..8_000).contains(&failed_after(text)), "rank {rank}: {text}");
    }
}

/// Rank 1 leaves without having received what it was sent. The others go on with each other.
fn leaves_unread() {
    let (mut link, device) = link();
    let (me, timeout) = (link.rank(), Duration::from_secs(5));
    if me != 1 {
        send(&mut link, &device, 1, 0, timeout);
    }
    link.barrier(Instant::now() + timeout).unwrap();
    if me == 1 {
        return;
    }
    std::thread::sleep(Duration::from_millis(300));
    // To the rank that has left, and to the others.
    send(&mut link, &device, 1, 1, timeout);
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
