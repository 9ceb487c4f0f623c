//! Ranks on several machines, over TCP: each has a network of its own, and cables can be pulled.
//!
//! They need root and Debian's `iproute2`, so they are asked for:
//! `cargo test --workspace --test tcp machines -- --ignored`.

use crate::{DEADLINE, Processes, RANK};
use pipeline_tests::machines::Machines;
use std::io::Read;
use std::time::{Duration, Instant};

/// The machines have all their ports for themselves.
const PORT: u16 = 29_500;

/// So many ranks, one machine after the other.
fn start(machines: &Machines, count: usize, ranks: usize, steps: usize) -> Processes {
    let program = std::env::current_exe().unwrap();
    let host = machines.address(0);
    Processes::start_with(ranks, steps, (&host, PORT), |rank| {
        let mut command = machines.command(rank % count, &program);
        command.env("BURN_PIPELINE_SECRET", "known to these machines alone");
        command
    })
}

#[test]
#[ignore = "makes networks: needs root and iproute2"]
fn ranks_on_several_machines_have_the_losses_of_threads_bit_for_bit() {
    for (count, ranks) in [(2, 2), (2, 4), (3, 3)] {
        let machines = Machines::start(count);
        start(&machines, count, ranks, 4).assert_losses_of_threads(4);
    }
}

/// What happens to a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// Its cable is pulled, and it goes on.
    Cut,
    /// It loses power: no connection is closed, nobody answers.
    Dark,
    /// All its processes are killed: connections are closed.
    Ended,
}

#[test]
#[ignore = "makes networks: needs root and iproute2"]
fn a_machine_that_is_cut_off_or_lost_is_named_by_every_other_rank_within_the_deadline() {
    for (fate, ranks, lost) in [(Fate::Cut, 3, 1), (Fate::Cut, 2, 0), (Fate::Dark, 3, 2), (Fate::Ended, 3, 1)] {
        let mut machines = Machines::start(ranks);
        let mut processes = start(&machines, ranks, ranks, 1_000_000);
        let mut outs: Vec<_> = (0..ranks).map(|rank| processes.after_steps(rank)).collect();
        if fate != Fate::Ended {
            machines.unplug(lost);
        }
        if fate != Fate::Cut {
            machines.end(lost);
        }
        let since = Instant::now();
        for (rank, out) in outs.iter_mut().enumerate() {
            let mut text = String::new();
            out.read_to_string(&mut text).unwrap();
            let failed = text.lines().find(|line| line.starts_with("failed")).unwrap_or("no error");
            let reported = format!("{fate:?} of {lost}, rank {rank} of {ranks} after {:?}: {failed}", since.elapsed());
            println!("{reported}");
            match rank == lost {
                // Nobody answers the one that is cut off.
                true if fate == Fate::Cut => assert!(failed.contains("does not answer"), "{reported}"),
                true => assert_eq!(failed, "no error", "{reported}"),
                false => assert!(failed.contains(&format!("rank {lost}")), "{reported}"),
            }
            let limit = if fate == Fate::Ended { DEADLINE / 2 } else { DEADLINE * 2 };
            assert!(since.elapsed() < limit, "{reported}");
        }
        let left = |machine: &usize| {
            let since = Instant::now();
            // A process ends a little after its last line.
            while !machines.processes(*machine, RANK).is_empty() && since.elapsed() < DEADLINE {
                std::thread::sleep(Duration::from_millis(20));
            }
            machines.processes(*machine, RANK)
        };
        let ends = (0..ranks).filter(|&machine| fate == Fate::Cut || machine != lost);
        assert_eq!(ends.flat_map(|machine| left(&machine)).collect::<Vec<_>>(), Vec::<String>::new());
    }
}
