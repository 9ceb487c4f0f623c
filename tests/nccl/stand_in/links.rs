//! What the link delivers over the mock libraries, and in which order.

use super::messages::{calls, header, read, send};
use super::start;
use super::storm::storm;
use crate::{TIMEOUT, link};
use burn_pipeline::link::{Link, Message};
use burn_pipeline::payload::Payload;
use std::time::Instant;

/// Runs the named part of a rank's process. Returns false if the name is not one of these.
pub(super) fn part(name: &str) -> bool {
    match name {
        "storm" => storm(),
        "both ways" => both_ways(),
        "priority" => priority(),
        "first messages" => first_messages(),
        _ => return false,
    }
    true
}

pub(super) const ORDERINGS: [&str; 2] = ["host", "device"];

#[test]
fn nccl_is_a_link() {
    // Concurrently: some cases mostly wait.
    std::thread::scope(|scope| {
        for (ranks, ordering) in [(2, "host"), (2, "device"), (4, "host"), (4, "device")] {
            scope.spawn(move || start(ranks, "conformance", &[("ORDERING", ordering)]).all_pass());
        }
    });
}

/// Rank 0 sends tensors by NCCL, each followed by a message over the connection.
fn both_ways() {
    let (mut link, device) = link();
    let deadline = Instant::now() + TIMEOUT;
    for round in 0..200 {
        if link.rank() == 0 {
            send(&mut link, &device, 1, 2 * round, TIMEOUT);
            let message = Message { header: header(2 * round + 1), payload: Payload::default() };
            link.send(1, message, deadline).unwrap();
        } else {
            assert_eq!(read(link.receive(0, header(2 * round), deadline).unwrap())[0], (2 * round) as f32);
            link.receive(0, header(2 * round + 1), deadline).unwrap();
        }
    }
    link.barrier(deadline).unwrap();
}

#[test]
fn messages_without_tensors_do_not_overtake_those_with_some() {
    for ordering in ORDERINGS {
        start(2, "both ways", &[("ORDERING", ordering)]).all_pass();
    }
}

/// First messages, for which communicators are made, while groups are formed, which needs all ranks.
fn first_messages() {
    let (mut link, device) = link();
    let (me, ranks, deadline) = (link.rank(), link.ranks(), Instant::now() + TIMEOUT);
    let others: Vec<usize> = (0..ranks).filter(|&rank| rank != me).collect();
    others.iter().for_each(|&to| send(&mut link, &device, to, me, TIMEOUT));
    let collectives = link.collectives().unwrap();
    collectives.form_sets(&[(0..ranks).collect()], deadline).unwrap();
    for from in others {
        assert_eq!(read(link.receive(from, header(from), deadline).unwrap())[0], from as f32);
    }
}

#[test]
fn groups_are_formed_while_first_messages_are_on_their_way() {
    for ranks in [2, 4] {
        for ordering in ORDERINGS {
            start(ranks, "first messages", &[("ORDERING", ordering)]).all_pass();
        }
    }
}

/// All queues of this rank have the expected priority.
fn priority() {
    both_ways();
    let high = std::env::var("HIGH_PRIORITY").is_ok();
    assert_eq!(["stream of priority 0", "stream of priority -5"].map(calls), if high { [0, 1] } else { [1, 0] });
}

#[test]
fn transfers_have_the_priority_that_was_asked_for() {
    start(2, "priority", &[("HIGH_PRIORITY", "1")]).all_pass();
    start(2, "priority", &[]).all_pass();
}

#[test]
fn transfers_of_all_ranks_at_once_arrive_in_order_and_sums_between_them_are_right() {
    for ranks in [2, 4] {
        for ordering in ORDERINGS {
            start(ranks, "storm", &[("ORDERING", ordering)]).all_pass();
        }
    }
}

/// The tensors have rows that are padded on the device.
#[test]
fn groups_sum_share_join_and_spread() {
    for ranks in [2, 4] {
        for ordering in ORDERINGS {
            start(ranks, "collectives", &[("ORDERING", ordering)]).all_pass();
        }
    }
}

/// The negative control: the mock notices a link that keeps no order.
#[test]
fn without_order_the_stand_in_ends_the_process() {
    // Transfers take so long that their results are read too early.
    let ended = start(2, "storm", &[("ORDERING", "unchecked"), ("STAND_IN_PAUSE_MS", "100")]).end();
    assert!(
        ended.iter().any(|(passed, text)| !passed && text.contains("memory is used before its event")),
        "{ended:?}"
    );
}
