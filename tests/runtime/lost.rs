//! Ranks on threads of which one is lost, at random points: none hangs, each says which, and no thread stays behind.
//!
//! Each rank is a pipeline of its own over its end of the link, as if it were a process (`Builder::build_rank`), so that
//! what it tells the others is all that they know. What happens to processes alone (`Kill`, `Stop`) is tested over MPI.

use crate::cases::{Case, Text};
use crate::watchdog::{for_each_at_once, quiet_ranks, within};
use burn::optim::SgdConfig;
use burn::tensor::Device;
use burn_pipeline::link::{Link, LinkError, Message, ThreadLink, Threads};
use burn_pipeline::schedule::{GPipe, OneFOneB, Schedule, Size};
use burn_pipeline::train::Pipeline;
use pipeline_tests::faulty_link::{Fault, Faulty};
use pipeline_tests::leaving::Leaving;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const DEADLINE: Duration = Duration::from_secs(1);
/// The deadline, and some time for a machine that does other things as well.
const IN_TIME: Duration = Duration::from_secs(6);

/// A message of another microbatch: threads hand headers over as they are, so that this is all that can go wrong.
fn corrupt(link: &mut ThreadLink, to: usize, mut message: Message, deadline: Instant) -> Result<(), LinkError> {
    message.header.microbatch += 1;
    link.send(to, message, deadline)
}

/// A rank's error, and how long after its last good step it came.
fn run(link: Box<dyn Link>, schedule: Box<dyn Schedule>, ranks: usize) -> (Duration, Option<String>) {
    let builder = Pipeline::builder()
        .schedule(schedule, Size::new(ranks, 4))
        .devices(vec![Device::flex()])
        .stages(Text::stage)
        .optimizer(|| SgdConfig::new().init())
        .timeout(DEADLINE);
    let mut since = Instant::now();
    let mut pipeline = match builder.build_rank(link) {
        Ok(pipeline) => pipeline,
        Err(error) => return (since.elapsed(), Some(error.to_string())),
    };
    for _ in 0..20 {
        since = Instant::now();
        if let Err(error) = pipeline.step(Text::new(4).batch(), 0.1) {
            return (since.elapsed(), Some(error.to_string()));
        }
    }
    (since.elapsed(), None)
}

fn strike(fault: Fault, ranks: usize, failing: usize, at: usize) {
    let (threads, released) = (Threads::new(ranks), Arc::new(AtomicBool::new(false)));
    let reported: Vec<(Duration, Option<String>)> = std::thread::scope(|scope| {
        let rank = |rank: usize| {
            let (link, released) = (threads.link(rank, Device::flex()), released.clone());
            scope.spawn(move || {
                let schedule: Box<dyn Schedule> = match rank == failing && fault == Fault::OtherPlan {
                    true => Box::new(GPipe),
                    false => Box::new(OneFOneB),
                };
                // At no use: never.
                let left = if rank == failing { at } else { 0 };
                let link = Faulty { link, fault, left, late: DEADLINE * 2, released, corrupt };
                run(Box::new(link), schedule, ranks)
            })
        };
        let running: Vec<_> = (0..ranks).map(rank).collect();
        running.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    released.store(true, Ordering::Relaxed);
    // Each rank's thread holds its link, and with it this: once it is here alone, all threads are gone.
    let gone = (0..500).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        Arc::strong_count(&released) == 1
    });
    assert!(gone, "threads stay behind");
    let words = match fault {
        Fault::OtherPlan => format!("rank {failing} differs from the others in the plan: it has GPipe #"),
        Fault::Corrupt => format!("from rank {failing}"),
        _ => format!("rank {failing}"),
    };
    for (rank, (seconds, said)) in reported.iter().enumerate().filter(|(rank, _)| *rank != failing) {
        let Some(said) = said else { panic!("rank {rank} got no error") };
        assert!(said.contains(&words), "rank {rank}: {said} does not say {words}");
        assert!(*seconds < IN_TIME, "rank {rank} took {seconds:?}: {said}");
    }
}

#[test]
fn a_rank_that_leaves_is_named_at_once_with_what_it_said_on_threads() {
    quiet_ranks();
    for (ranks, leaves, leaving) in
        [(2, 0, Leaving::Drop), (3, 1, Leaving::Drop), (3, 2, Leaving::Say), (3, 0, Leaving::Panic)]
    {
        let threads = Threads::new(ranks);
        let run = |rank: usize| {
            let builder = Pipeline::builder()
                .schedule(OneFOneB, Size::new(ranks, 4))
                .devices(vec![Device::flex()])
                .stages(Text::stage)
                .optimizer(|| SgdConfig::new().init());
            let mut pipeline = builder.build_rank(Box::new(threads.link(rank, Device::flex()))).unwrap();
            (0..3).for_each(|_| drop(pipeline.step(Text::new(4).batch(), 0.1).unwrap()));
            let since = Instant::now();
            if rank != leaves {
                return Some((pipeline.step(Text::new(4).batch(), 0.1).unwrap_err().to_string(), since.elapsed()));
            }
            let left = catch_unwind(AssertUnwindSafe(|| leaving.leave(pipeline)));
            assert_eq!(left.is_err(), leaving == Leaving::Panic);
            None
        };
        let told: Vec<_> = std::thread::scope(|scope| {
            let run = &run;
            // Their names keep what they panic with off the terminal.
            let named = |rank| std::thread::Builder::new().name(format!("rank {rank} of {ranks}"));
            let running: Vec<_> =
                (0..ranks).map(|rank| named(rank).spawn_scoped(scope, move || run(rank)).unwrap()).collect();
            running.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        for (error, took) in told.into_iter().flatten() {
            for says in [&format!("rank {leaves}"), leaving.says()] {
                assert!(error.contains(says), "{leaving:?}: {error} does not say {says}");
            }
            assert!(took < IN_TIME, "{leaving:?}: {took:?}: {error}");
        }
    }
}

fn faults(count: usize) {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    let mut state = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(now);
    println!("seed {state}");
    let mut below = |limit: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % limit
    };
    let mut drawn = || {
        // Not those of processes alone.
        let fault = Fault::ALL[2 + below(Fault::ALL.len() - 2)];
        let ranks = 2 + below(3);
        // Of two ranks with different plans, neither is the odd one: the later one is named.
        let (ranks, at) = (if fault == Fault::OtherPlan { ranks.max(3) } else { ranks }, 1 + below(60));
        (fault, ranks, below(ranks), at)
    };
    let drawn: Vec<_> = (0..count).map(|_| drawn()).collect();
    for_each_at_once(&drawn, |&(fault, ranks, failing, at)| {
        let what = format!("{fault:?} on rank {failing} of {ranks}, at its use {at} of the link");
        println!("{what}");
        within(60, &what, move || strike(fault, ranks, failing, at));
    });
}

/// As many as `FAULTS` says, else a few.
#[test]
fn faults_at_random_points_are_named_on_threads() {
    quiet_ranks();
    faults(std::env::var("FAULTS").ok().and_then(|count| count.parse().ok()).unwrap_or(8));
}
