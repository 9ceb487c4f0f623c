//! A process leaves the job between two steps: every other one reports so at once, with its reason.

use crate::{DEADLINE, Processes, TIMEOUT, place, port};
use burn::tensor::Device;
use burn_pipeline::link::kit::{Envelope, Mesh};
use burn_pipeline::link::{Failure, Header, Link, LinkError, MessageKind, TcpLink};
use burn_pipeline::plan::StageId;
use pipeline_tests::leaving::Leaving;
use std::io::{Read, Write};
use std::time::Instant;

#[test]
fn a_process_that_leaves_is_named_at_once_with_what_it_said() {
    for (ranks, leaves, leaving) in
        [(3, 1, Leaving::Drop), (2, 0, Leaving::Drop), (3, 2, Leaving::Say), (3, 0, Leaving::Panic)]
    {
        let mut processes = Processes::start_with(ranks, 1_000_000, ("127.0.0.1", port()), |_| {
            let mut program = Processes::program();
            program.env("LEAVING", format!("{leaving:?}")).env("LEAVES", leaves.to_string());
            program
        });
        let mut outs: Vec<_> = (0..ranks).map(|rank| processes.after_steps(rank)).collect();
        let since = Instant::now();
        for (rank, out) in outs.iter_mut().enumerate().filter(|(rank, _)| *rank != leaves) {
            let mut text = String::new();
            out.read_to_string(&mut text).unwrap();
            let failed = text.lines().find(|line| line.starts_with("failed")).unwrap_or("no error");
            for says in [&format!("rank {leaves}"), leaving.says()] {
                assert!(
                    failed.contains(says),
                    "{leaving:?} of {leaves}, rank {rank}: {failed} does not contain {says}"
                );
            }
            assert!(since.elapsed() < DEADLINE / 2, "{leaving:?}, rank {rank}: {:?}: {failed}", since.elapsed());
        }
    }
}

#[test]
fn a_rank_that_leaves_because_of_another_says_so_before_it_is_taken_for_the_cause() {
    let port = port();
    let (mut waiting, mut leaving, mut failing) = std::thread::scope(|scope| {
        let link =
            |rank| scope.spawn(move || TcpLink::connect(&place(rank, 3, port), Device::flex(), TIMEOUT).unwrap());
        let (waiting, leaving) = (link(0), link(1));
        // The test plays rank 2.
        let failing = Mesh::connect_at(&place(2, 3, port), TIMEOUT).unwrap();
        (waiting.join().unwrap(), leaving.join().unwrap(), failing)
    });
    let header = Header { stage: StageId::new(1), microbatch: 0, kind: MessageKind::Activation };
    let failure = Failure { rank: 2, message: "its disk is full".to_owned() };
    // Its message to rank 0 is still in transit.
    let told = Envelope::Failed { failure: failure.clone(), recoveries: 0, gathers: 0 }.write();
    let packet = [&[0][..], &(told.len() as u32).to_le_bytes(), &told].concat();
    failing[1].as_mut().unwrap().write_all(&packet).unwrap();
    let error = leaving.receive(0, header, Instant::now() + TIMEOUT).unwrap_err();
    assert_eq!(error, LinkError::Peer(failure.clone()));
    drop(leaving);
    let error = waiting.receive(1, header, Instant::now() + TIMEOUT).unwrap_err();
    assert_eq!(error, LinkError::Peer(failure));
}
