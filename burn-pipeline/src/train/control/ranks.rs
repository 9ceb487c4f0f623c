//! The ranks of this process, as the caller sees them: asks all of them, and decides what silence and errors mean.

use super::command::{Call, Command};
use super::endings::Endings;
use super::worker::{Reply, Task, Worker, run};
use crate::execute::ExecuteError;
use crate::link::{Activity, Failure, Link, Monitor, PANICKED};
use crate::train::error::PipelineError;
use crate::train::step::Rank;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// The ranks of this process: all of the job, or one where ranks are processes.
#[derive(Debug)]
pub(crate) struct Ranks {
    numbers: Vec<usize>,
    tasks: Vec<Sender<Task>>,
    processes: bool,
    monitor: Arc<dyn Monitor>,
    timeout: Duration,
    /// What closed the pipeline.
    failure: Option<Failure>,
    /// Dropped after `tasks`, whose end the threads see first.
    #[expect(dead_code, reason = "it is there for its drop")]
    endings: Endings,
}

/// How ranks are started.
pub(crate) struct Start {
    /// One end of the link for each rank of this process.
    pub(crate) links: Vec<Box<dyn Link>>,
    /// Are the other ranks processes?
    pub(crate) processes: bool,
    pub(crate) monitor: Arc<dyn Monitor>,
    /// The longest that any wait may take.
    pub(crate) timeout: Duration,
    /// Compute threads of each rank.
    pub(crate) threads: usize,
}

impl Ranks {
    /// Starts a thread for each link and builds its rank there. Returns what `build` says of each rank.
    pub(crate) fn start<T: Send + 'static>(
        start: Start,
        build: impl Fn(Box<dyn Link>) -> Result<(Rank, T), ExecuteError> + Clone + Send + 'static,
    ) -> Result<(Self, Vec<T>), PipelineError> {
        let Start { links, processes, monitor, timeout, threads } = start;
        let (ready, replies) = channel();
        let (mut numbers, mut tasks, mut endings) = (Vec::new(), Vec::new(), Endings::default());
        for link in links {
            let (sender, receiver) = channel();
            let rank = link.rank();
            numbers.push(rank);
            tasks.push(sender);
            // Threads of one process share the process's life; a process of its own waits until its link is closed.
            let alive = processes.then(|| endings.add());
            let worker = Worker { link, threads, build: build.clone(), ready: ready.clone(), tasks: receiver };
            let body = move || {
                worker.run();
                drop(alive);
            };
            if let Err(error) = std::thread::Builder::new().name(format!("rank {rank}")).spawn(body) {
                let message = format!("its thread cannot be started: {error}");
                return Err(PipelineError::Rank(ExecuteError::Device { rank, message }));
            }
        }
        drop(ready);
        let mut ranks = Self { numbers, tasks, processes, monitor, timeout, failure: None, endings };
        let built = ranks.collect(replies, None)?;
        Ok((ranks, built))
    }

    /// Are there ranks in other processes?
    pub(crate) fn are_processes(&self) -> bool {
        self.processes
    }

    /// Is this rank one of this process?
    pub(crate) fn holds(&self, rank: usize) -> bool {
        self.numbers.contains(&rank)
    }

    /// Closes the pipeline. Where ranks are processes, the others learn why this one leaves.
    pub(crate) fn leave(&mut self, reason: &str) {
        let rank = self.numbers.first().copied().unwrap_or_default();
        let failure = Failure { rank, message: reason.to_owned() };
        if self.processes {
            self.monitor.abort(failure.clone());
        }
        self.failure.get_or_insert(failure);
    }

    /// Has every rank run a command; returns all replies, in the order of ranks.
    pub(crate) fn ask<C: Command>(&mut self, command: C) -> Result<Vec<C::Reply>, PipelineError> {
        if let Some(failure) = &self.failure {
            return Err(PipelineError::Closed(failure.clone()));
        }
        let (sender, replies) = channel();
        let step = command.step();
        let span = tracing::info_span!("command", otel.name = C::NAME, step);
        let _entered = span.enter();
        let (command, began, processes) = (Arc::new(command), Instant::now(), self.processes);
        for tasks in &self.tasks {
            let (command, sender, span) = (command.clone(), sender.clone(), span.clone());
            // A rank whose thread has ended sends no reply, which `collect` notices.
            let _ = tasks.send(Box::new(move |rank: &mut Rank| {
                let _entered = tracing::debug_span!(parent: span, "rank", rank = rank.number()).entered();
                let reply = run(rank, command.as_ref(), began, processes);
                // What the command holds (a batch) is released before the caller goes on.
                drop(command);
                let _ = sender.send((rank.number(), reply));
            }));
        }
        drop((sender, command));
        let replies: Result<Vec<Vec<C::Reply>>, _> = self.collect(replies, step)?.into_iter().collect();
        Ok(replies?.into_iter().flatten().collect())
    }

    /// Where ranks are processes: tells the others when this one refuses a call, so that they do not run it.
    pub(crate) fn admit<T, E: Display>(&mut self, admitted: Result<T, E>) -> Result<T, E> {
        if let (true, Err(refusal)) = (self.processes, &admitted) {
            // The reply is this very refusal, or a failure that the next call reports.
            let _ = self.ask(Refuse(refusal.to_string()));
        }
        admitted
    }

    /// One reply of every rank to a command of this step, in the order of ranks. The error is the first cause, not its
    /// echoes on other ranks.
    fn collect<T>(&mut self, replies: Receiver<Reply<T>>, step: Option<u64>) -> Result<Vec<T>, PipelineError> {
        let mut results: BTreeMap<usize, T> = BTreeMap::new();
        let mut errors: Vec<(usize, ExecuteError)> = Vec::new();
        let mut outstanding = self.numbers.clone();
        // Ranks give up waiting at their timeout, so one that makes no progress for longer is stuck in user code.
        // A step may take many times the timeout as long as some rank makes progress.
        let mut progress = self.monitor.progress();
        let grace = self.timeout + self.timeout / 4 + Duration::from_millis(200);
        while !outstanding.is_empty() {
            // Once a rank failed, the others reply at once, or are stuck.
            let wait = if errors.is_empty() { grace } else { Duration::from_millis(500).min(grace) };
            match replies.recv_timeout(wait) {
                Ok((rank, result)) => {
                    outstanding.retain(|&other| other != rank);
                    match result {
                        Ok(reply) => drop(results.insert(rank, reply)),
                        Err(error) => errors.push((rank, error)),
                    }
                }
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    let now = self.monitor.progress();
                    if now == progress || !errors.is_empty() {
                        break;
                    }
                    progress = now;
                }
            }
        }
        if errors.is_empty() && outstanding.is_empty() {
            return Ok(results.into_values().collect());
        }
        Err(self.close(errors, &outstanding, step))
    }

    /// Closes the pipeline and names the first cause: a rank's own error before what others say of it, and before silence.
    fn close(&mut self, errors: Vec<(usize, ExecuteError)>, outstanding: &[usize], step: Option<u64>) -> PipelineError {
        let (secondary, own): (Vec<_>, Vec<_>) = errors.into_iter().partition(|(_, error)| error.is_secondary());
        let seconds = self.timeout.as_secs_f64();
        let silent = |rank, activity| PipelineError::Silent { rank, step, seconds, activity };
        let error = match (own.into_iter().next(), outstanding.first(), secondary.into_iter().next()) {
            (Some((_, error)), ..) => PipelineError::Rank(error),
            (None, Some(&rank), _) => silent(rank, self.monitor.activity(rank)),
            (None, None, Some((_, error))) => PipelineError::Rank(error),
            (None, None, None) => silent(0, Activity::Idle),
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

impl Drop for Ranks {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.leave(PANICKED);
        }
    }
}

/// A refusal: no process runs the call.
struct Refuse(String);

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
