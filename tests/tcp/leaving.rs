//! A process that leaves the job between two steps: every other one says so at once, and what it said.

use crate::{DEADLINE, Processes, port};
use pipeline_tests::leaving::Leaving;
use std::io::Read;
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
                assert!(failed.contains(says), "{leaving:?} of {leaves}, rank {rank}: {failed} does not say {says}");
            }
            assert!(since.elapsed() < DEADLINE / 2, "{leaving:?}, rank {rank}: {:?}: {failed}", since.elapsed());
        }
    }
}
