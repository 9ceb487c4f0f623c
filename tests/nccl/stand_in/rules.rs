//! The mock ends a process that breaks a rule, and names the rule, for each of its checks. The same calls in order
//! pass.

use super::rank::{BYTES, Rank};
use super::start_without_link;
use cudarc::driver::result as driver;
use cudarc::nccl::sys::{self as nccl, ncclDataType_t};
use std::time::{Duration, Instant};

/// Breaks the rule of that name in a rank's process. Returns false if there is none.
pub(super) fn part(name: &str) -> bool {
    let bytes = ncclDataType_t::ncclUint8;
    let rank = Rank::new();
    let memory = rank.memory();
    match name {
        "in order" => keeps_order(&rank),
        "count" if rank.rank == 0 => rank.send(memory, BYTES),
        "count" => rank.receive(memory, BYTES - 1, bytes),
        "type" if rank.rank == 0 => rank.send(memory, BYTES / 4),
        "type" => rank.receive(memory, BYTES / 4, ncclDataType_t::ncclInt32),
        "cycle" => {
            rank.send(memory, BYTES);
            rank.settle();
            rank.receive(rank.memory(), BYTES, bytes);
        }
        "sent too early" => {
            rank.write(memory, rank.compute);
            rank.send(memory, BYTES);
        }
        "used too early" => {
            let got = rank.transfer();
            rank.settle();
            rank.write(got, rank.compute);
        }
        "freed" => {
            let used = rank.transfer();
            rank.settle();
            // SAFETY: none; this breaks the rule.
            unsafe { driver::free_sync(used) }.unwrap();
        }
        "allocated elsewhere" => {
            rank.write(rank.ordered_memory(), rank.transfers);
        }
        "freed elsewhere" => {
            let used = rank.ordered_memory();
            rank.write(used, rank.compute);
            rank.free_in(rank.transfers, used);
        }
        "used after it was freed" => {
            let used = rank.ordered_memory();
            rank.free_in(rank.compute, used);
            rank.write(used, rank.compute);
        }
        "beyond" => rank.send(memory + 1, BYTES),
        "recorded too early" => {
            rank.transfer();
            rank.event(rank.transfers);
        }
        "called too early" => {
            rank.transfer();
            // No stream is used in between: that would break another rule.
            match rank.rank {
                0 => rank.send(memory, BYTES),
                _ => rank.receive(memory, BYTES, bytes),
            }
        }
        "lower first" => {
            rank.settle();
            if rank.rank == 1 {
                std::thread::sleep(Duration::from_millis(200));
            }
            rank.transfer();
        }
        "a value in no queue" => {
            // SAFETY: the stream and the memory are alive.
            let _ = unsafe { cudarc::driver::sys::cuStreamWaitValue32_v2(rank.transfers, memory, 1, 0) };
        }
        "overlap" => rank.group(|| {
            rank.send(memory, BYTES);
            rank.receive(memory, BYTES, bytes);
        }),
        "itself" => rank.group(|| {
            // SAFETY: the arguments are valid.
            unsafe {
                nccl::ncclSend(memory as *const _, BYTES, bytes, rank.rank, rank.communicator, rank.transfers.cast())
            };
        }),
        "destroyed" => {
            // SAFETY: the communicator is alive.
            unsafe { nccl::ncclCommDestroy(rank.communicator) };
        }
        _ => return false,
    }
    rank.settle();
    rank.finish(rank.transfers);
    true
}

/// The calls of the rules below, in order.
fn keeps_order(rank: &Rank) {
    for _ in 0..3 {
        let lent = rank.ordered_memory();
        rank.write(lent, rank.compute);
        rank.wait(rank.transfers, rank.event(rank.compute));
        rank.write(lent, rank.transfers);
        rank.wait_for_value(lent);
        rank.free_in(rank.transfers, lent);
        let got = rank.transfer();
        rank.settle();
        let there = rank.memory();
        rank.group(|| {
            rank.send(got, BYTES);
            rank.receive(there, BYTES, ncclDataType_t::ncclUint8);
        });
        rank.settle();
        rank.wait(rank.compute, rank.event(rank.transfers));
        let mut read = [0_u8; BYTES];
        // SAFETY: the memory is that long, and the host waits before it reads.
        unsafe { driver::memcpy_dtoh_async(&mut read, there, rank.compute) }.unwrap();
        rank.finish(rank.compute);
        assert_eq!(read, [3; BYTES]);
        // SAFETY: the host has seen that nothing uses it any more.
        unsafe { driver::free_sync(got).and(driver::free_sync(there)) }.unwrap();
    }
    // SAFETY: nothing uses the communicator while it ends.
    unsafe { nccl::ncclCommFinalize(rank.communicator) };
    rank.settle();
    // SAFETY: as above.
    unsafe { nccl::ncclCommDestroy(rank.communicator) };
    std::process::exit(0);
}

#[test]
fn calls_in_order_pass() {
    start_without_link(2, "in order", &[]).all_pass();
}

#[test]
fn a_process_that_breaks_a_rule_ends_with_its_name() {
    for (part, rule) in [
        ("count", "both ends of a transfer name the same count and type"),
        ("type", "both ends of a transfer name the same count and type"),
        ("cycle", "queues do not wait for each other: rank 0 waits for [1], rank 1 waits for [0]"),
        ("sent too early", "memory is used before its event: a send"),
        ("used too early", "memory is used before its event: a copy from the host"),
        ("freed", "memory is freed while in flight"),
        ("allocated elsewhere", "memory is used before its event: a copy from the host"),
        ("freed elsewhere", "memory is used before its event: a free"),
        ("used after it was freed", "memory is not allocated: a copy from the host"),
        ("beyond", "memory is not allocated"),
        ("recorded too early", "a group is not in the queue yet"),
        ("called too early", "a communicator has not settled"),
        ("lower first", "the higher rank launches first: transfer 1 with rank 1"),
        ("a value in no queue", "the value that a stream waits for is in a queue: 1 at"),
        ("overlap", "calls of one group use memory of their own"),
        ("itself", "a rank receives what it sends to itself"),
        ("destroyed", "a communicator is destroyed after it was finalised"),
    ] {
        let began = Instant::now();
        // The peer of a process that has ended waits for it, as over NCCL.
        let more: &[_] = if part == "lower first" { &[("STAND_IN_HIGHEST_FIRST", "1")] } else { &[] };
        let ended = start_without_link(2, part, more).end_with_the_first(Duration::from_secs(20));
        assert!(ended.contains(&format!("broken rule: {rule}")), "{part}: {ended}");
        println!("{part}: {:?}", began.elapsed());
    }
}
