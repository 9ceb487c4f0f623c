//! The whole of `train_gpt`, from its arguments to its exit code.
//!
//! Guarantees: with `--log json`, standard output holds the steps' JSON lines and nothing else; flags that no run
//! can have end it with one message and code 2, a run in which a rank failed or was lost with one message and code 3, any
//! other that fails with one message and code 1.

use crate::generate::Sampling;
use crate::network::{self, NetworkError};
use crate::options::{LinkName, LogFormat, Options, Setup};
use crate::options_error::OptionsError;
use crate::processes::{self, LOST, ProcessesError};
use crate::step_log::StepLog;
use crate::traces::TraceError;
use crate::training::{StepRecord, TrainError, Trainer};
use burn_pipeline::link::Launch;
#[cfg(feature = "mpi")]
use burn_pipeline_mpi::{Mpi, MpiError};
use clap::Parser;
use std::ffi::OsString;
use std::io::{self, Write};
use std::time::{Duration, Instant};

/// Bytes of the sample.
pub(crate) const SAMPLE: usize = 400;
/// The sample's temperature: a little below 1, for fewer odd bytes.
pub(crate) const TEMPERATURE: f64 = 0.8;

/// The longest that processes may take to find each other, and to part.
#[cfg(feature = "mpi")]
const PATIENCE: Duration = Duration::from_secs(60);

/// Why a run ended early.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Flags that no run can have.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// Training failed.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// MPI cannot be used.
    #[cfg(feature = "mpi")]
    #[error(transparent)]
    Mpi(#[from] MpiError),
    /// Processes cannot be started.
    #[error(transparent)]
    Processes(#[from] ProcessesError),
    /// The other ranks cannot be reached.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// The timeline cannot be written.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// Standard output or standard error is closed.
    #[error("the output cannot be written: {0}")]
    Output(#[from] io::Error),
}

impl RunError {
    /// The process's exit code.
    pub fn exit_code(&self) -> u8 {
        match self {
            RunError::Options(_) => 2,
            RunError::Train(error) if error.is_of_a_rank() => LOST,
            _ => 1,
        }
    }
}

/// Parses the arguments and runs; gives the exit code.
pub fn main(arguments: impl Iterator<Item = OsString>, out: &mut dyn Write, err: &mut dyn Write) -> u8 {
    let options = match Options::try_parse_from(arguments) {
        Ok(options) => options,
        Err(error) => {
            // Help and version go to standard output, refusals to standard error; a closed one is no news.
            let _ = if error.use_stderr() { write!(err, "{error}") } else { write!(out, "{error}") };
            return error.exit_code() as u8;
        }
    };
    if let Some(processes) = options.processes {
        return start(options, processes, err).unwrap_or_else(|error| tell(&error, err));
    }
    let done = match options.link {
        LinkName::Threads => run(options, out, err),
        LinkName::Mpi => over_mpi(options, out, err),
        LinkName::Tcp | LinkName::Nccl => over_network(options, out, err),
    };
    done.map_or_else(|error| tell(&error, err), |()| 0)
}

/// Starts processes that do what this one was asked to do; gives the exit code.
fn start(options: Options, processes: usize, err: &mut dyn Write) -> Result<u8, RunError> {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    // Flags that no run can have are refused once, here.
    let options = options.check()?.options;
    Ok(processes::run(&options, processes, &arguments, err)?)
}

/// One message, and the exit code.
fn tell(error: &RunError, err: &mut dyn Write) -> u8 {
    // A closed standard error is no news.
    let _ = writeln!(err, "error: {error}");
    error.exit_code()
}

/// This process is one rank of those that `mpirun` started; rank 0 tells.
#[cfg(feature = "mpi")]
fn over_mpi(options: Options, out: &mut dyn Write, err: &mut dyn Write) -> Result<(), RunError> {
    let setup = options.check()?;
    let mpi = Mpi::connect(PATIENCE)?;
    let done = mpi.link(setup.device.clone()).map_err(RunError::from).and_then(|link| {
        if mpi.rank() == 0 {
            setup.trace.prepare()?;
        }
        let trainer = Trainer::over(setup, Some(Box::new(link)))?;
        match mpi.rank() {
            0 => run_trainer(trainer, true, out, err),
            _ => run_trainer(trainer, false, &mut io::sink(), &mut io::sink()),
        }
    });
    // MPI cannot go on without a rank, and a process that merely ended would leave stopped ones behind.
    done.or_else(|error| mpi.end_job(i32::from(tell(&error, err))))
}

#[cfg(not(feature = "mpi"))]
fn over_mpi(options: Options, _: &mut dyn Write, _: &mut dyn Write) -> Result<(), RunError> {
    // Refuses it.
    options.check()?;
    Ok(())
}

/// This process is one rank of those that a launcher started; rank 0 tells.
fn over_network(options: Options, out: &mut dyn Write, err: &mut dyn Write) -> Result<(), RunError> {
    let setup = options.check()?;
    let launch = Launch::from_environment().map_err(OptionsError::from)?.ok_or(OptionsError::NoLauncher)?;
    let leads = launch.rank == 0;
    if leads {
        setup.trace.prepare()?;
    }
    let link = network::open(&setup, &launch)?;
    let trainer = Trainer::over(setup, Some(link))?;
    match leads {
        true => run_trainer(trainer, true, out, err),
        false => run_trainer(trainer, false, &mut io::sink(), &mut io::sink()),
    }
}

/// Trains, evaluates, draws a sample and writes the timeline.
///
/// # Errors
/// [`RunError`].
pub fn run(options: Options, out: &mut dyn Write, err: &mut dyn Write) -> Result<(), RunError> {
    let setup = options.check()?;
    setup.trace.prepare()?;
    run_trainer(Trainer::new(setup)?, true, out, err)
}

/// All that is run, on every rank; the leading one writes the timeline.
fn run_trainer(mut trainer: Trainer, leads: bool, out: &mut dyn Write, err: &mut dyn Write) -> Result<(), RunError> {
    let format = trainer.setup().options.log;
    {
        let told: &mut dyn Write = if format == LogFormat::Text { out } else { err };
        introduce(trainer.setup(), trainer.setup().model.parameters(), told)?;
        if trainer.done() > 0 {
            writeln!(told, "goes on after step {}", trainer.done())?;
        }
    }
    let (records, elapsed) = train(&mut trainer, out)?;
    let told: &mut dyn Write = if format == LogFormat::Text { out } else { err };
    conclude(&mut trainer, leads, &records, elapsed, told)
}

/// What is run: plan, data and model.
pub(crate) fn introduce(setup: &Setup, parameters: usize, told: &mut dyn Write) -> io::Result<()> {
    let (options, plan) = (&setup.options, &setup.plan);
    let (ranks, stages, microbatches) = (plan.ranks(), plan.stages(), plan.total_microbatches());
    let sharded = if options.sharded { ", parameters sharded" } else { "" };
    let replicas = match options.data_parallel {
        1 => String::new(),
        replicas => format!(", in each of {replicas} replicas{sharded}"),
    };
    writeln!(
        told,
        "{} over {ranks} rank(s), {stages} stage(s), {microbatches} microbatch(es){replicas}; {} compute thread(s) a rank",
        plan.name(),
        options.threads
    )?;
    if setup.auto.is_some() {
        writeln!(told, "a few steps are measured, then the planner's best schedule takes over")?;
    }
    if options.plan.is_none() && microbatches < options.microbatches {
        writeln!(told, "a batch of {} windows makes no more than {microbatches} microbatches", options.batch)?;
    }
    let (training, held_out) = (setup.corpus.training().len(), setup.corpus.held_out().len());
    writeln!(told, "{parameters} parameters; {training} bytes to learn from, {held_out} held out")
}

/// Runs all steps; gives what they told, and how long they took together.
fn train(trainer: &mut Trainer, out: &mut dyn Write) -> Result<(Vec<StepRecord>, Duration), RunError> {
    let options = &trainer.setup().options;
    let mut log = StepLog::new(options.log, options.steps, out);
    let began = Instant::now();
    let mut records = Vec::new();
    while let Some(record) = trainer.step()? {
        log.step(&record)?;
        trainer.save_if_due()?;
        records.push(record);
    }
    Ok((records, began.elapsed()))
}

fn conclude(
    trainer: &mut Trainer,
    leads: bool,
    records: &[StepRecord],
    elapsed: Duration,
    told: &mut dyn Write,
) -> Result<(), RunError> {
    let (steps, seconds) = (records.len(), elapsed.as_secs_f64());
    let tokens = steps * trainer.setup().options.batch * trainer.setup().options.seq;
    match steps {
        0 => writeln!(told, "\nall steps were done before")?,
        _ => writeln!(told, "\n{steps} steps in {seconds:.1} s: {:.0} tokens/s", tokens as f64 / seconds)?,
    }
    if trainer.setup().auto.is_some() {
        writeln!(told, "\nthe schedule: {}\n", trainer.decision())?;
    }
    let evaluation = trainer.evaluate()?;
    let (loss, bigram, bytes) = (evaluation.loss, evaluation.bigram, evaluation.bytes);
    writeln!(told, "held-out loss {loss:.4} nats a byte over {bytes} bytes; a table of byte pairs has {bigram:.4}")?;
    if trainer.is_measured() {
        timelines(trainer, leads, told)?;
    }
    if let Some(folder) = &trainer.setup().options.save {
        writeln!(told, "checkpoints: {} (for --resume, and for `generate_gpt --from`)", folder.display())?;
    }
    let seed = trainer.setup().options.seed;
    let sampling = Sampling { length: SAMPLE, texts: 1, temperature: TEMPERATURE, seed };
    for text in trainer.sample(b"\n", &sampling)? {
        writeln!(told, "\na sample at temperature {TEMPERATURE}:\n{}", readable(&text))?;
    }
    Ok(())
}

/// Writes what the last steps took, measured and predicted.
fn timelines(trainer: &mut Trainer, leads: bool, told: &mut dyn Write) -> Result<(), RunError> {
    let (paths, measured, profile) = (trainer.setup().trace.clone(), trainer.timeline(), trainer.profile()?);
    if leads {
        paths.write(&measured, &trainer.predicted(&profile)?, &profile)?;
    }
    let (chrome, svg) = (paths.chrome.display(), paths.svg.display());
    writeln!(told, "{}: {chrome} (open it in ui.perfetto.dev), {svg}", measured.name)?;
    writeln!(told, "costs for `burn-pipeline simulate --profile`: {}", paths.profile.display())?;
    Ok(())
}

/// Text as it can be put on a terminal: bytes that are no printable ASCII become dots.
pub(crate) fn readable(text: &[u8]) -> String {
    let show = |&byte: &u8| if byte == b'\n' || byte == b' ' || byte.is_ascii_graphic() { byte as char } else { '.' };
    text.iter().map(show).collect()
}
