//! One rank of the tests over MPI: `tests/mpi` runs it under `mpirun`. Its argument names what it does.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test's program fails by panicking, and tells"
)]

mod auto;
#[allow(dead_code, reason = "the tests on threads use all of it")]
#[path = "../runtime/cases.rs"]
mod cases;
mod checkpoints;
#[allow(dead_code, reason = "the tests on threads use all of it")]
#[path = "../../burn-pipeline-learner/tests/learner/classifier.rs"]
mod classifier;
mod conform;
mod experts;
#[allow(dead_code, reason = "the tests on threads use all of it")]
#[path = "../moe/cases.rs"]
mod experts_cases;
mod faults;
mod grids;
mod jobs;
#[allow(dead_code, reason = "the tests on threads use all of it")]
#[path = "../../burn-pipeline-learner/tests/learner/ranks.rs"]
mod learner_ranks;
#[allow(dead_code, reason = "the tests that run this program read what is said")]
mod odd;
mod parity;
mod plain;
mod rates;
mod repeats;
mod replicas;
mod starts;
#[allow(dead_code, reason = "the tests on threads use all of it")]
#[path = "../runtime/shared/model.rs"]
mod tied;
mod times;
#[allow(dead_code, reason = "the tests on threads use all of it")]
#[path = "../../burn-pipeline-learner/tests/learner/training.rs"]
mod training;
mod vocabulary;
mod warm;

use burn_pipeline_mpi::Mpi;
use std::ffi::OsString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Duration;

/// The timeout of starting and ending.
const TIMEOUT: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if let Some(example @ ("train_gpt" | "train_moe")) = arguments.first().copied() {
        let (mut out, mut err) = (std::io::stdout(), std::io::stderr());
        let own = arguments.iter().take(arguments.len() - 1).map(OsString::from);
        return ExitCode::from(match example {
            "train_gpt" => pipeline_examples::train_gpt::run(own, &mut out, &mut err),
            _ => pipeline_examples::train_moe::run(own, &mut out, &mut err),
        });
    }
    if let ["starts", odd, ends, _] = arguments.as_slice() {
        starts::run(odd, ends);
        return ExitCode::SUCCESS;
    }
    let mpi = match Mpi::connect(TIMEOUT) {
        Ok(mpi) => mpi,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    };
    let number = |text: &str| text.parse::<usize>().unwrap();
    // The last argument only marks the processes, so that any left behind can be found.
    let done = catch_unwind(AssertUnwindSafe(|| match arguments.as_slice() {
        ["conformance", _] => passed(|| conform::all(&mpi)),
        ["recovers", _] => passed(|| conform::recovers(&mpi)),
        ["groups", _] => passed(|| conform::groups(&mpi)),
        ["again", _] => passed(conform::once_only),
        ["parity", _] => passed(|| parity::every_schedule(&mpi)),
        ["replicas", _] => passed(|| replicas::parity(&mpi, false)),
        ["shards", _] => passed(|| replicas::parity(&mpi, true)),
        ["strangers", _] => passed(|| jobs::strangers(&mpi)),
        ["odd", fields, _] => passed(|| jobs::odd(&mpi, fields)),
        ["calls", _] => passed(|| jobs::calls(&mpi)),
        ["receives", _] => passed(|| repeats::receives(&mpi)),
        ["reads", _] => passed(|| jobs::reads(&mpi)),
        ["agree", _] => passed(|| auto::agree(&mpi)),
        ["go-back", _] => passed(|| auto::go_back(&mpi)),
        ["learner", _] => passed(|| learner_ranks::compare(Box::new(mpi.link(burn::tensor::Device::flex()).unwrap()))),
        ["experts", _] => passed(|| experts::metrics(&mpi)),
        ["grids", _] => passed(|| grids::parity(&mpi)),
        ["expert_parallel", _] => passed(|| experts::expert_parallel(&mpi)),
        ["over-replicas", _] => passed(|| experts::over_replicas(&mpi)),
        ["vocabulary", _] => passed(|| vocabulary::parity(&mpi)),
        ["rates", _] => passed(|| rates::by_group(Box::new(mpi.link(burn::tensor::Device::flex()).unwrap()))),
        ["plain", _] => passed(|| plain::by_microbatch(Box::new(mpi.link(burn::tensor::Device::flex()).unwrap()))),
        ["warm", _] => passed(|| warm::up(&mpi)),
        ["shared", _] => passed(|| parity::shared(&mpi)),
        ["save", schedule, folder, _] => passed(|| checkpoints::save(&mpi, schedule, folder, false)),
        ["save-threads", schedule, folder, _] => passed(|| checkpoints::save(&mpi, schedule, folder, true)),
        ["export", schedule, folder, _] => passed(|| checkpoints::export(&mpi, schedule, folder)),
        ["resume", schedule, folder, _] => passed(|| checkpoints::resume(&mpi, schedule, folder)),
        ["refusals", folder, _] => passed(|| checkpoints::refusals(&mpi, folder)),
        ["until-struck", folder, fault, failing, save, within, _] => {
            checkpoints::until_struck(&mpi, folder, fault, [failing, save, within].map(|text| number(text)))
        }
        ["times", _] => passed(|| times::print(&mpi)),
        ["leave", how, leaving, _] => faults::leave(&mpi, how, number(leaving)),
        ["fault", fault, failing, at, _] => faults::strike(&mpi, fault, number(failing), number(at)),
        other => panic!("there is no test {other:?}"),
    }));
    match done {
        Ok(Ok(())) => ExitCode::SUCCESS,
        // Already printed.
        Ok(Err(_)) => mpi.end_job(1),
        Err(_) => mpi.end_job(101),
    }
}

fn passed(test: impl FnOnce()) -> Result<(), String> {
    test();
    Ok(())
}
