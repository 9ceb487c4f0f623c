//! A rank that fails at a given point of its run, and what the others report.

use crate::cases::{Case, Text};
use burn::optim::SgdConfig;
use burn::tensor::Device;
use burn_pipeline::link::{Link, LinkError, Message};
use burn_pipeline::schedule::{GPipe, OneFOneB, Schedule, Size};
use burn_pipeline::train::Pipeline;
use burn_pipeline_mpi::{Mpi, MpiLink};
use pipeline_tests::faulty_link::{Fault, Faulty, spoilt};
use pipeline_tests::leaving::Leaving;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// The timeout of every wait in these runs.
pub(crate) const DEADLINE: Duration = Duration::from_secs(4);

/// Sends a corrupted message.
fn spoil(link: &mut MpiLink, fault: Fault, to: usize, message: Message, _: Instant) -> Result<(), LinkError> {
    link.send_packed(to, spoilt(fault, message))
}

/// Leaves the job, and continues to run for a while. A panic is caught in `main`, which then ends the job, after
/// the others have printed their errors.
fn leave_as(leaving: Leaving, pipeline: Pipeline) -> Result<(), String> {
    let left = catch_unwind(AssertUnwindSafe(|| leaving.leave(pipeline)));
    std::thread::sleep(DEADLINE);
    left.map_err(|_| "it panicked".to_owned())
}

/// Trains until one rank leaves between two steps. The others print their error, and how long after their last good
/// step it came.
pub(crate) fn leave(mpi: &Mpi, how: &str, leaving: usize) -> Result<(), String> {
    let link = Box::new(mpi.link(Device::flex()).unwrap());
    let builder = Pipeline::builder()
        .schedule(OneFOneB, Size::new(mpi.ranks(), 4))
        .devices(vec![Device::flex()])
        .stages(Text::stage)
        .optimizer(|| SgdConfig::new().init())
        .timeout(10 * DEADLINE);
    let mut pipeline = builder.build_rank(link).unwrap();
    for step in 0..20 {
        let since = Instant::now();
        if mpi.rank() == leaving && step == 3 {
            return leave_as(Leaving::named(how), pipeline);
        }
        if let Err(error) = pipeline.step(Text::new(4).batch(), 0.1) {
            println!("rank {} after {:.1} s: {error}", mpi.rank(), since.elapsed().as_secs_f64());
            return Ok(());
        }
    }
    panic!("no rank left");
}

/// Trains until the fault. Each rank that still can prints its error, and how long after the last good step it
/// came.
pub(crate) fn strike(mpi: &Mpi, fault: &str, failing: usize, at: usize) -> Result<(), String> {
    let (me, fault) = (mpi.rank(), Fault::named(fault));
    let link = mpi.link(Device::flex()).unwrap();
    let late = DEADLINE * 2;
    let link: Box<dyn Link> = match me == failing {
        true => Box::new(Faulty { link, fault, left: at, late, released: Default::default(), spoil }),
        false => Box::new(link),
    };
    let schedule: Box<dyn Schedule> = match me == failing && fault == Fault::OtherPlan {
        true => Box::new(GPipe),
        false => Box::new(OneFOneB),
    };
    let mut since = Instant::now();
    let reported = |since: Instant, error: String| {
        println!("rank {me} after {:.1} s: {error}", since.elapsed().as_secs_f64());
        Err(error)
    };
    let builder = Pipeline::builder()
        .schedule(schedule, Size::new(mpi.ranks(), 4))
        .devices(vec![Device::flex()])
        .stages(Text::stage)
        .optimizer(|| SgdConfig::new().init())
        .timeout(DEADLINE);
    let mut pipeline = match builder.build_rank(link) {
        Ok(pipeline) => pipeline,
        Err(error) => return reported(since, error.to_string()),
    };
    for step in 0..20 {
        since = Instant::now();
        if let Some(leaving) = fault.leaves(at, step).filter(|_| me == failing) {
            return leave_as(leaving, pipeline);
        }
        if let Err(error) = pipeline.step(Text::new(4).batch(), 0.1) {
            return reported(since, error.to_string());
        }
    }
    Ok(())
}
