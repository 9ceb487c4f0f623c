//! Ranks on threads, one of which is lost at a random point: none hangs, each names it, and no thread remains.
//!
//! Each rank is a pipeline over its end of the link, as in a process (`Builder::build_rank`), so it knows only what
//! the others send. Faults of processes alone (`Kill`, `Stop`) are tested over MPI.

use crate::cases::{Case, Text};
use crate::watchdog::{quiet_ranks, within};
use burn::optim::SgdConfig;
use burn::tensor::Device;
use burn_pipeline::link::{Link, LinkError, Message, ThreadLink, Threads};
use burn_pipeline::schedule::{GPipe, OneFOneB, Schedule, Size};
use burn_pipeline::train::Pipeline;
use pipeline_tests::at_once::for_each_at_once;
use pipeline_tests::drawn::faults;
use pipeline_tests::faulty_link::{Fault, Faulty};
use pipeline_tests::leaving::Leaving;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const DEADLINE: Duration = Duration::from_secs(1);
/// The timeout, and some time for a busy machine.
const IN_TIME: Duration = Duration::from_secs(6);

/// A message of another microbatch: threads pass headers on unchanged, so nothing else can be corrupted.
fn spoil(link: &mut ThreadLink, _: Fault, to: usize, mut message: Message, deadline: Instant) -> Result<(), LinkError> {
    message.header.microbatch += 1;
    link.send(to, message, deadline)
}

/// A rank's error, and how long after its last good step it came.
fn run(
    link: Box<dyn Link>,
    schedule: Box<dyn Schedule>,
    ranks: usize,
    leaves: impl Fn(usize) -> Option<Leaving>,
) -> (Duration, Option<String>) {
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
    for step in 0..20 {
        since = Instant::now();
        if let Some(leaving) = leaves(step) {
            // It continues to run.
            let left = catch_unwind(AssertUnwindSafe(|| leaving.leave(pipeline)));
            return (since.elapsed(), left.err().map(|_| "it panicked".to_owned()));
        }
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
            let body = move || {
                let schedule: Box<dyn Schedule> = match rank == failing && fault == Fault::OtherPlan {
                    true => Box::new(GPipe),
                    false => Box::new(OneFOneB),
                };
                // Zero means never.
                let left = if rank == failing { at } else { 0 };
                let link = Faulty { link, fault, left, late: DEADLINE * 2, released, spoil };
                let leaves = |step| fault.leaves(at, step).filter(|_| rank == failing);
                run(Box::new(link), schedule, ranks, leaves)
            };
            // Its name keeps its panic message off the terminal.
            std::thread::Builder::new().name(format!("rank {rank} of {ranks}")).spawn_scoped(scope, body).unwrap()
        };
        let running: Vec<_> = (0..ranks).map(rank).collect();
        running.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    released.store(true, Ordering::Relaxed);
    // Each rank's thread holds its link, which holds a clone of this: once only this one is left, all threads have
    // ended.
    let gone = (0..500).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        Arc::strong_count(&released) == 1
    });
    assert!(gone, "threads remain");
    let words = match fault {
        Fault::OtherPlan => vec![format!("rank {failing} differs from the others in the plan: it has GPipe #")],
        Fault::Corrupt | Fault::Stray => vec![format!("from rank {failing}")],
        Fault::Leave(leaving) => vec![format!("rank {failing}"), leaving.says().to_owned()],
        _ => vec![format!("rank {failing}")],
    };
    for (rank, (seconds, said)) in reported.iter().enumerate().filter(|(rank, _)| *rank != failing) {
        let Some(said) = said else { panic!("rank {rank} got no error") };
        assert!(words.iter().all(|word| said.contains(word)), "rank {rank}: {said} does not contain {words:?}");
        assert!(*seconds < IN_TIME, "rank {rank} took {seconds:?}: {said}");
    }
}

#[test]
fn a_rank_that_hangs_at_any_exchange_of_a_build_is_named_in_time() {
    quiet_ranks();
    let places: Vec<usize> = (1..=10).collect();
    for_each_at_once(5, &places, |&at| {
        within(60, &format!("use {at}"), move || strike(Fault::Hang, 2, 0, at));
    });
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
            // Their names keep their panic messages off the terminal.
            let named = |rank| std::thread::Builder::new().name(format!("rank {rank} of {ranks}"));
            let running: Vec<_> =
                (0..ranks).map(|rank| named(rank).spawn_scoped(scope, move || run(rank)).unwrap()).collect();
            running.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        for (error, took) in told.into_iter().flatten() {
            for says in [&format!("rank {leaves}"), leaving.says()] {
                assert!(error.contains(says), "{leaving:?}: {error} does not contain {says}");
            }
            assert!(took < IN_TIME, "{leaving:?}: {took:?}: {error}");
        }
    }
}

#[test]
fn faults_at_random_points_are_named_on_threads() {
    quiet_ranks();
    // Not the faults of processes or of bytes: threads pass tensors without encoding them.
    let others = [Fault::Kill, Fault::Stop, Fault::Oversized];
    let kinds: Vec<Fault> = Fault::ALL.into_iter().filter(|fault| !others.contains(fault)).collect();
    for_each_at_once(5, &faults(&kinds, 10), |&drawn| {
        println!("{drawn}");
        within(60, &drawn.to_string(), move || strike(drawn.fault, drawn.ranks, drawn.failing, drawn.at));
    });
}
