//! The caller's handle of this process's ranks: sends commands to all, and interprets errors and missing replies.

use super::command::{Call, Command};
use super::worker::{Reply, Task, run, serve};
use crate::execute::ExecuteError;
use crate::link::kit::ended_within;
use crate::link::{Activity, Failure, Link, Monitor, PANICKED, PROLONGED, Pace};
use crate::train::error::PipelineError;
use crate::train::step::{Rank, Recovered};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The longest wait for the thread of a rank to end.
const ENDING: Duration = Duration::from_secs(10);

/// The ranks of this process: all of the job, or one if ranks are processes.
///
/// Dropping one of several processes waits until its thread has closed its link, so that links are closed in order
/// before their process ends; at most [`ENDING`], so that a rank stuck in user code does not keep its process alive.
#[derive(Debug)]
pub(crate) struct Ranks {
    numbers: Vec<usize>,
    tasks: Vec<Sender<Task>>,
    /// True if the other ranks are processes.
    pub(crate) processes: bool,
    monitor: Arc<dyn Monitor>,
    timeout: Duration,
    /// The failure that closed the pipeline.
    failure: Option<Failure>,
    /// The failure that left some ranks with weights from before a step and others from after it.
    pub(crate) uneven: Option<Failure>,
    /// The rank's thread, if ranks are processes; other threads end with their process.
    thread: Option<JoinHandle<()>>,
}

impl Ranks {
    /// Starts a thread for each link and builds its rank there. Returns what `build` returns for each rank. `processes`
    /// is true if the other ranks are processes.
    pub(crate) fn start<T: Send + 'static>(
        links: Vec<Box<dyn Link>>,
        processes: bool,
        monitor: Arc<dyn Monitor>,
        timeout: Duration,
        threads: usize,
        build: impl Fn(Box<dyn Link>) -> Result<(Rank, T), ExecuteError> + Clone + Send + 'static,
    ) -> Result<(Self, Vec<T>), PipelineError> {
        let (ready, replies) = channel();
        let (mut numbers, mut tasks, mut thread) = (Vec::new(), Vec::new(), None);
        for link in links {
            let (sender, receiver) = channel();
            let rank = link.rank();
            numbers.push(rank);
            tasks.push(sender);
            let (build, ready) = (build.clone(), ready.clone());
            let body = move || serve(link, threads, build, ready, receiver);
            let started = std::thread::Builder::new().name(format!("rank {rank}")).spawn(body);
            let failed = |message| PipelineError::Rank(ExecuteError::Threads { rank, message });
            thread = Some(started.map_err(|error| failed(error.to_string()))?).filter(|_| processes);
        }
        drop(ready);
        let mut ranks = Self { numbers, tasks, processes, monitor, timeout, failure: None, uneven: None, thread };
        match ranks.collect(replies) {
            Ok(built) => Ok((ranks, built)),
            Err(failed) => Err(ranks.close(failed, None)),
        }
    }

    /// Returns true if this process runs the rank.
    pub(crate) fn holds(&self, rank: usize) -> bool {
        self.numbers.contains(&rank)
    }

    /// Closes the pipeline. When ranks are processes, the others get the reason.
    pub(crate) fn leave(&mut self, reason: &str) {
        let rank = self.numbers.first().copied().unwrap_or_default();
        let failure = Failure { rank, message: reason.to_owned() };
        if self.processes {
            self.monitor.abort(failure.clone());
        }
        self.failure.get_or_insert(failure);
    }

    /// Runs a command on every rank. Returns all replies, in rank order.
    pub(crate) fn ask<C: Command>(&mut self, command: C) -> Result<Vec<C::Reply>, PipelineError> {
        if let Some(failure) = &self.failure {
            return Err(PipelineError::Closed(failure.clone()));
        }
        if let Some(failure) = self.uneven.as_ref().filter(|_| C::RUNS_ON_WEIGHTS) {
            return Err(PipelineError::Uneven(failure.clone()));
        }
        let step = command.step();
        let span = tracing::info_span!("command", otel.name = C::NAME, step);
        let _entered = span.enter();
        let (command, began, processes) = (Arc::new(command), Instant::now(), self.processes);
        let replies = self.tell(|| {
            let (command, span) = (command.clone(), span.clone());
            move |rank: &mut Rank| {
                let _entered = tracing::debug_span!(parent: span, "rank", rank = rank.number()).entered();
                let reply = run(rank, command.as_ref(), began, processes);
                // The command's contents (a batch) are released before the caller continues.
                drop(command);
                reply
            }
        });
        drop(command);
        match self.collect(replies) {
            Ok(replies) => Ok(replies.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect()),
            Err(failed) => Err(self.go_on(failed, C::GATHERS, step)),
        }
    }

    /// Runs a task on the thread of every rank. Returns the channel of their replies.
    fn tell<T: Send + 'static, F>(&self, task: impl Fn() -> F) -> Receiver<Reply<T>>
    where
        F: FnOnce(&mut Rank) -> Result<T, ExecuteError> + Send + 'static,
    {
        let (sender, replies) = channel();
        for tasks in &self.tasks {
            let (task, sender) = (task(), sender.clone());
            // A rank whose thread has ended sends no reply, which `collect` detects.
            let _ = tasks.send(Box::new(move |rank: &mut Rank| {
                let reply = task(rank);
                let _ = sender.send((rank.number(), reply));
            }));
        }
        replies
    }

    /// Collects one reply of every rank, in rank order.
    fn collect<T>(&self, replies: Receiver<Reply<T>>) -> Result<Vec<T>, Failed> {
        let mut results: BTreeMap<usize, T> = BTreeMap::new();
        let mut failed = Failed { errors: Vec::new(), outstanding: self.numbers.clone(), waited: self.timeout };
        // Waits of ranks end at their timeout, so a rank that makes no progress for longer is stuck in user code. A
        // step may take many times the timeout as long as some rank makes progress.
        let mut progress = self.monitor.progress();
        let grace = self.timeout + self.timeout / 4 + Duration::from_millis(200);
        let (began, mut prolongations) = (Instant::now(), PROLONGED);
        while !failed.outstanding.is_empty() {
            // After the link has ended, the other ranks reply at once, or are stuck.
            let wait = if failed.is_of_calls() { grace } else { Duration::from_millis(500).min(grace) };
            match replies.recv_timeout(wait) {
                Ok((rank, result)) => {
                    failed.outstanding.retain(|&other| other != rank);
                    match result {
                        Ok(reply) => drop(results.insert(rank, reply)),
                        Err(error) => failed.errors.push((rank, error)),
                    }
                }
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    let now = self.monitor.progress();
                    let waits_on = prolongations > 0 && self.some_are_slow(&failed.outstanding);
                    if !failed.is_of_calls() || now == progress && !waits_on {
                        break;
                    }
                    if waits_on {
                        (prolongations, failed.waited) = (prolongations - 1, began.elapsed());
                    }
                    progress = now;
                }
            }
        }
        match failed.errors.is_empty() && failed.outstanding.is_empty() {
            true => Ok(results.into_values().collect()),
            false => Err(failed),
        }
    }

    /// Returns true if one of these ranks does something that may take long, and logs an event.
    fn some_are_slow(&self, ranks: &[usize]) -> bool {
        let slow =
            |rank: &usize| Some((*rank, self.monitor.activity(*rank))).filter(|(_, does)| does.pace() == Pace::Long);
        let slow = ranks.iter().find_map(slow);
        slow.inspect(|(rank, does)| tracing::warn!(rank, %does, "waiting on for a rank that is slow")).is_some()
    }

    /// Recovers after a failed call if ranks and links are sound and all processes' ranks take part; otherwise closes
    /// the pipeline. `gathers` is true if the call accumulates gradients.
    fn go_on(&mut self, failed: Failed, gathers: bool, step: Option<u64>) -> PipelineError {
        if !(failed.outstanding.is_empty() && failed.is_of_calls()) {
            return self.close(failed, step);
        }
        let recovered = self.collect(self.tell(|| move |rank: &mut Rank| rank.recover(gathers)));
        let Some(Recovered { dropped, changed }) = recovered.ok().and_then(|all| all.into_iter().next()) else {
            return self.close(failed, step);
        };
        let (rank, error) = failed.first();
        tracing::warn!(
            rank, error = %error.cause(), dropped, weights_changed = changed, "a call failed; the pipeline goes on"
        );
        match changed {
            false => PipelineError::Undone { source: Box::new(error), dropped },
            true => {
                self.uneven = Some(Failure { rank, message: error.cause().to_string() });
                PipelineError::HalfStepped(Box::new(error))
            }
        }
    }

    /// Closes the pipeline and returns the first cause: a rank's own error before others' errors about it, and before a
    /// missing reply.
    fn close(&mut self, failed: Failed, step: Option<u64>) -> PipelineError {
        let seconds = failed.waited.as_secs_f64();
        let silent = |rank, activity| PipelineError::Silent { rank, step, seconds, activity };
        let own = failed.errors.iter().any(|(_, error)| !error.is_secondary());
        let error = match failed.outstanding.first() {
            Some(&rank) if !own => silent(rank, self.monitor.activity(rank)),
            _ if failed.errors.is_empty() => silent(0, Activity::Idle),
            _ => PipelineError::Rank(failed.first().1),
        };
        let rank = match &error {
            PipelineError::Silent { rank, .. } => *rank,
            _ => self.monitor.failure().map_or(0, |failure| failure.rank),
        };
        let failure = Failure { rank, message: error.sentence() };
        self.monitor.abort(failure.clone());
        self.failure = Some(failure);
        error
    }
}

/// The outcome of a call that failed on some rank.
struct Failed {
    errors: Vec<(usize, ExecuteError)>,
    /// Ranks that have not replied.
    outstanding: Vec<usize>,
    /// How long the caller waited for them.
    waited: Duration,
}

impl Failed {
    /// Returns true if ranks and links are sound, as far as is known.
    fn is_of_calls(&self) -> bool {
        self.errors.iter().all(|(_, error)| error.is_of_call())
    }

    /// Returns the rank that failed and its error: the first cause, not its consequences on other ranks. There must be
    /// an error.
    fn first(mut self) -> (usize, ExecuteError) {
        let place = self.errors.iter().position(|(_, error)| !error.is_secondary()).unwrap_or_default();
        let (rank, error) = self.errors.swap_remove(place);
        let of = match error.cause() {
            ExecuteError::Link { source, .. } => source.failure().map_or(rank, |failure| failure.rank),
            _ => rank,
        };
        (of, error)
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.leave(PANICKED);
        }
        // The thread ends when it sees the end of its tasks.
        self.tasks.clear();
        if let Some(thread) = &self.thread {
            ended_within(thread, ENDING);
        }
    }
}

/// A refusal, so that no process runs the call.
pub(crate) struct Refuse(pub(crate) String);

impl Command for Refuse {
    type Reply = ();
    const NAME: &'static str = "refusing a call";

    fn call(&self) -> Call {
        Call::Refused(self.0.clone())
    }

    fn run(&self, _: &mut Rank, _: Instant) -> Result<(), ExecuteError> {
        Ok(())
    }
}
