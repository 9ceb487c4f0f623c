//! Tests over NCCL on a machine with an NVIDIA GPU, or on any other machine against mock CUDA and NCCL libraries:
//!
//! ```text
//! cargo test --release -p pipeline-tests --features nccl --test nccl -- --test-threads 1
//! cargo test -p pipeline-tests --features nccl --test nccl stand_in
//! ```
//!
//! One GPU is enough: each rank is a process, and several share the GPU, which NCCL treats as several machines
//! (`processes.rs` sets this up). So these tests say nothing about speed. On machines with more GPUs, each rank
//! takes one. With `ORDERING=device` the GPU waits instead of the host.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests fail by panicking and print what they covered")]

#[allow(dead_code, reason = "the tests on threads use all of it")]
#[path = "../runtime/cases.rs"]
mod cases;
mod conform;
mod order;
mod parity;
mod processes;
mod stand_in;
mod tensors;

use burn::tensor::Device;
use burn_pipeline::link::Launch;
use burn_pipeline::link::conformance::CASES;
use burn_pipeline_nccl::{NcclLink, NcclOptions, Ordering};
use processes::Processes;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(60);

fn ordering() -> Ordering {
    match std::env::var("ORDERING").as_deref() {
        Ok("device") => Ordering::Device,
        Ok("unchecked") => Ordering::Unchecked,
        _ => Ordering::Host,
    }
}

/// This process's end of a new link.
fn link() -> (NcclLink, Device) {
    let launch = Launch::from_environment().unwrap().unwrap();
    let device = NcclLink::gpu_of(&launch).unwrap();
    let ordered_sums = std::env::var("ORDERED_SUMS").is_ok();
    let high_priority = std::env::var("HIGH_PRIORITY").is_ok();
    let options = NcclOptions { ordering: ordering(), timeout: TIMEOUT, ordered_sums, high_priority };
    (NcclLink::connect(&launch.rendezvous().unwrap(), device.clone(), options).unwrap(), device)
}

/// One rank of the tests below, in its own process. `PART` names what it does.
#[test]
#[ignore = "a process of the other tests"]
fn a_rank() {
    let part = std::env::var("PART").unwrap();
    // Starts a new line after the test runner's output.
    println!();
    match part.as_str() {
        "tensors" => tensors::to_itself(),
        "conformance" => match std::env::var("CASE") {
            Ok(number) => conform::case(number.parse().unwrap()),
            Err(_) => (0..CASES.len()).for_each(conform::case),
        },
        // Rows of 65 elements are padded on a GPU.
        "collectives" => tensors::collectives(65),
        "order" => order::ring(),
        "parity" => parity::schedules(),
        "lost" => parity::until_one_is_lost(),
        part => stand_in::run(part),
    }
}

#[test]
fn one_rank_sends_every_tensor_to_itself() {
    Processes::start(1, "tensors", &[]).all_pass();
}

#[test]
fn nccl_is_a_link() {
    for ranks in [2, 4] {
        for (number, (name, _)) in CASES.iter().enumerate() {
            println!("{ranks} ranks: {name}");
            Processes::start(ranks, "conformance", &[("CASE", &number.to_string())]).all_pass();
        }
    }
}

#[test]
fn groups_sum_share_join_and_spread() {
    for ranks in [2, 4] {
        Processes::start(ranks, "collectives", &[]).all_pass();
    }
}

#[test]
fn what_is_sent_is_what_was_computed() {
    for ranks in [1, 2, 4] {
        Processes::start(ranks, "order", &[]).all_pass();
    }
}

/// The negative control: without any order between computing and transfers, the same check must fail.
#[test]
fn without_order_what_is_sent_is_not_what_was_computed() {
    let reported = Processes::start(2, "order", &[("ORDERING", "unchecked")]).end();
    let wrong = reported.iter().any(|(passed, text)| !passed && text.contains("is not what was computed"));
    assert!(wrong, "the check does not notice missing order: {reported:?}");
}

#[test]
fn ranks_compute_what_threads_on_one_device_compute() {
    for ranks in [1, 2, 4] {
        Processes::start(ranks, "parity", &[]).all_pass();
    }
}

#[test]
fn a_killed_rank_is_named_by_all_others() {
    let (ranks, killed) = (3, 1);
    let mut processes = Processes::start(ranks, "lost", &[]);
    processes.kill_after_steps(killed);
    for (rank, (_, text)) in processes.end().iter().enumerate().filter(|(rank, _)| *rank != killed) {
        let failed = text.lines().find(|line| line.starts_with("failed")).unwrap_or("no error");
        assert!(failed.contains(&format!("rank {killed}")), "rank {rank}: {failed}");
    }
}
