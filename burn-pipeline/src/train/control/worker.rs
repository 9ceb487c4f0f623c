//! A rank's thread: builds the rank, then runs commands until the pipeline is dropped.
//!
//! Guarantees: an error or a panic of one rank reaches all other ranks. Each thread computes in its own pool, so ranks
//! do not compete for one. Panics of user code are caught where it is called; a panic that reaches this file comes from
//! the runtime itself, and closes the pipeline.

use super::agreement::agree_on_call;
use super::command::{Call, Command};
use crate::execute::{ExecuteError, panic_message, tell_failure};
use crate::link::{Activity, Failure, Link, LinkError, own_fusion_queue};
use crate::train::error::PipelineError;
use crate::train::step::{Rank, caught};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender};
use std::time::Instant;

/// A command for a rank's thread; it contains the channel of its reply.
pub(super) type Task = Box<dyn FnOnce(&mut Rank) + Send>;

pub(super) type Reply<T> = (usize, Result<T, ExecuteError>);

/// Runs a rank's thread with a pool of this many compute threads: builds the rank, replies to `ready`, then runs tasks
/// until there are no more senders.
pub(super) fn serve<T: Send>(
    link: Box<dyn Link>,
    threads: usize,
    build: impl FnOnce(Box<dyn Link>) -> Result<(Rank, T), ExecuteError> + Send,
    ready: Sender<Reply<T>>,
    tasks: Receiver<Task>,
) {
    let rank = link.rank();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
    match pool.thread_name(move |thread| format!("rank {rank} compute {thread}")).build() {
        Ok(pool) => pool.install(move || own_fusion_queue(|| serve_here(link, build, ready, tasks))),
        Err(error) => {
            let error = ExecuteError::Threads { rank, message: error.to_string() };
            // Sending fails only if the pipeline is gone; then nobody waits for the reply.
            let _ = ready.send((rank, Err(error)));
        }
    }
}

fn serve_here<T>(
    link: Box<dyn Link>,
    build: impl FnOnce(Box<dyn Link>) -> Result<(Rank, T), ExecuteError>,
    ready: Sender<Reply<T>>,
    tasks: Receiver<Task>,
) {
    let (number, watch) = (link.rank(), link.monitor());
    match caught(number, || "building its stages".to_owned(), || build(link)) {
        Ok((mut rank, facts)) => {
            let _ = ready.send((number, Ok(facts)));
            // Dropped, so that a caller waiting for other ranks notices when all threads have ended.
            drop(ready);
            while let Ok(task) = tasks.recv() {
                task(&mut rank);
            }
        }
        Err(error) => {
            tell_failure(number, &error);
            watch.abort(Failure { rank: number, message: error.to_string() });
            let _ = ready.send((number, Err(error)));
        }
    }
}

/// Runs a command on a rank. The outer error is a failure, which this function reports to all other ranks; the inner
/// one is a call that no process ran.
pub(super) fn run<C: Command>(
    rank: &mut Rank,
    command: &C,
    began: Instant,
    processes: bool,
) -> Result<Result<Vec<C::Reply>, PipelineError>, ExecuteError> {
    rank.begin_call();
    let call = processes.then(|| command.call());
    let is_local = matches!(call, Some(Call::Local));
    let run = |rank: &mut Rank| {
        let result = match call {
            Some(call) if !is_local => run_together(rank, command, call),
            _ => command.run(rank, began).map(|reply| Ok(vec![reply])),
        };
        rank.executor.link().set_activity(Activity::Idle);
        result
    };
    // Unwind safety: a panic ends the link, and so the pipeline.
    let result = catch_unwind(AssertUnwindSafe(|| run(rank)));
    let goes_on = is_local && result.is_ok();
    let result = result.unwrap_or_else(|panic| Err(of_panic(rank, C::NAME, panic.as_ref())));
    let result = result.map_err(|error| rank.executor.blame_device(error));
    match result.inspect_err(|error| tell_failure(rank.number(), error)) {
        // No other process takes part in the call, so none has to know.
        Err(error) if goes_on && error.is_of_call() => {
            Ok(Err(PipelineError::Undone { source: Box::new(error), dropped: false }))
        }
        result => result.inspect_err(|error| rank.executor.fail(error)),
    }
}

/// The error of a panic that reached this thread: the link's error if a collective raised it, otherwise one that ends
/// the link.
fn of_panic(rank: &mut Rank, doing: &str, panic: &(dyn Any + Send)) -> ExecuteError {
    let number = rank.number();
    if let Some(source) = panic.downcast_ref::<LinkError>() {
        return rank.link_error(source.clone());
    }
    let error = ExecuteError::RankPanic { rank: number, doing: doing.to_owned(), message: panic_message(panic) };
    rank.executor.link().abort(error.to_string());
    error
}

fn run_together<C: Command>(
    rank: &mut Rank,
    command: &C,
    call: Call,
) -> Result<Result<Vec<C::Reply>, PipelineError>, ExecuteError> {
    if let Some(refused) = agree_on_call(rank, call)? {
        return Ok(Err(refused));
    }
    // Processes have no common clock. All ranks are here now, which is the closest to a common start.
    let own = command.run(rank, Instant::now())?;
    let replies = command.exchange(rank, own)?;
    rank.meet_after_changes()?;
    rank.calls += 1;
    Ok(Ok(replies))
}
