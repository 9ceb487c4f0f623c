//! The whole of `train_moe`, from its arguments to its exit code.
//!
//! Guarantees: as those of `train_gpt`: with `--log json`, standard output holds the steps' JSON lines and nothing
//! else; flags that no run can have end it with one message and code 2, a run in which a rank failed or was lost with one
//! message and code 3, any other that fails with one message and code 1.

use crate::generate::Sampling;
use crate::moe::expert_load;
use crate::moe::gpt::Injection;
use crate::moe::load_curves::{self, LoadCurve};
use crate::moe::options::{MoeOptions, MoeOptionsError, MoeSetup};
use crate::moe::training::{MoeStepRecord, MoeTrainError, MoeTrainer};
use crate::network::{self, NetworkError};
use crate::options::{LinkName, LogFormat};
use crate::options_error::OptionsError;
use crate::processes::{self, LOST, ProcessesError};
use crate::run::{self, SAMPLE, TEMPERATURE, readable};
use crate::step_log::StepLog;
use crate::traces::TraceError;
use burn_pipeline::link::Launch;
#[cfg(feature = "mpi")]
use burn_pipeline_mpi::{Mpi, MpiError};
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;
use std::time::Instant;

/// The longest that processes may take to find each other, and to part.
#[cfg(feature = "mpi")]
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);

/// Steps at the end over which loads are told.
const LAST: usize = 50;

/// Why a run ended early.
#[derive(Debug, thiserror::Error)]
pub enum MoeRunError {
    /// Flags that no run can have.
    #[error(transparent)]
    Options(#[from] MoeOptionsError),
    /// Training failed.
    #[error(transparent)]
    Train(#[from] MoeTrainError),
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
    /// A file cannot be written.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// Standard output or standard error is closed.
    #[error("the output cannot be written: {0}")]
    Output(#[from] io::Error),
}

/// Parses the arguments and runs; gives the exit code.
pub fn main(arguments: impl Iterator<Item = OsString>, out: &mut dyn Write, err: &mut dyn Write) -> u8 {
    let options = match MoeOptions::from_arguments(arguments) {
        Ok(options) => options,
        Err(error) => {
            // Help and version go to standard output, refusals to standard error; a closed one is no news.
            let _ = if error.use_stderr() { write!(err, "{error}") } else { write!(out, "{error}") };
            return error.exit_code() as u8;
        }
    };
    if let Some(processes) = options.common.processes {
        return start(options, processes, err).unwrap_or_else(|error| tell(&error, err));
    }
    let done = match options.common.link {
        LinkName::Threads => run(options, out, err),
        LinkName::Mpi => over_mpi(options, out, err),
        LinkName::Tcp | LinkName::Nccl => over_network(options, out, err),
    };
    done.map_or_else(|error| tell(&error, err), |()| 0)
}

/// One message, and the exit code.
fn tell(error: &MoeRunError, err: &mut dyn Write) -> u8 {
    // A closed standard error is no news.
    let _ = writeln!(err, "error: {error}");
    match error {
        MoeRunError::Options(_) => 2,
        MoeRunError::Train(MoeTrainError::Train(error)) if error.is_of_a_rank() => LOST,
        _ => 1,
    }
}

/// Starts processes that do what this one was asked to do; gives the exit code.
fn start(options: MoeOptions, processes: usize, err: &mut dyn Write) -> Result<u8, MoeRunError> {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    // Flags that no run can have are refused once, here.
    let options = options.check()?.common.options;
    Ok(processes::run(&options, processes, &arguments, err)?)
}

/// This process is one rank of those that `mpirun` started; rank 0 tells.
#[cfg(feature = "mpi")]
fn over_mpi(options: MoeOptions, out: &mut dyn Write, err: &mut dyn Write) -> Result<(), MoeRunError> {
    let setup = options.check()?;
    let mpi = Mpi::connect(PATIENCE)?;
    let done = mpi.link(setup.common.device.clone()).map_err(MoeRunError::from).and_then(|link| {
        if mpi.rank() == 0 {
            setup.common.trace.prepare()?;
        }
        let trainer = MoeTrainer::over(setup, Some(Box::new(link)))?;
        match mpi.rank() {
            0 => run_trainer(trainer, true, out, err),
            _ => run_trainer(trainer, false, &mut io::sink(), &mut io::sink()),
        }
    });
    // MPI cannot go on without a rank, and a process that merely ended would leave stopped ones behind.
    done.or_else(|error| mpi.end_job(i32::from(tell(&error, err))))
}

#[cfg(not(feature = "mpi"))]
fn over_mpi(options: MoeOptions, _: &mut dyn Write, _: &mut dyn Write) -> Result<(), MoeRunError> {
    // Refuses it.
    options.check()?;
    Ok(())
}

/// This process is one rank of those that a launcher started; rank 0 tells.
fn over_network(options: MoeOptions, out: &mut dyn Write, err: &mut dyn Write) -> Result<(), MoeRunError> {
    let setup = options.check()?;
    let launch = Launch::from_environment().map_err(OptionsError::from).map_err(MoeOptionsError::from)?;
    let launch = launch.ok_or(OptionsError::NoLauncher).map_err(MoeOptionsError::from)?;
    let leads = launch.rank == 0;
    if leads {
        setup.common.trace.prepare()?;
    }
    let link = network::open(&setup.common, &launch)?;
    let trainer = MoeTrainer::over(setup, Some(link))?;
    match leads {
        true => run_trainer(trainer, true, out, err),
        false => run_trainer(trainer, false, &mut io::sink(), &mut io::sink()),
    }
}

/// Trains, evaluates, draws a sample and writes the timeline and the experts' load; or draws curves of three trainings.
///
/// # Errors
/// [`MoeRunError`].
pub fn run(options: MoeOptions, out: &mut dyn Write, err: &mut dyn Write) -> Result<(), MoeRunError> {
    let setup = options.check()?;
    if let Some(path) = setup.curves.clone() {
        return curves(setup, &path, out, err);
    }
    setup.common.trace.prepare()?;
    run_trainer(MoeTrainer::new(setup)?, true, out, err)
}

/// All that is run, on every rank; the leading one writes files.
fn run_trainer(
    mut trainer: MoeTrainer,
    leads: bool,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> Result<(), MoeRunError> {
    let format = trainer.setup().common.options.log;
    introduce(&trainer, if format == LogFormat::Text { out } else { err })?;
    let began = Instant::now();
    let records = train(&mut trainer, out)?;
    let told: &mut dyn Write = if format == LogFormat::Text { out } else { err };
    conclude(&mut trainer, leads, &records, began.elapsed().as_secs_f64(), told)
}

/// Runs all steps; gives what they told.
fn train(trainer: &mut MoeTrainer, out: &mut dyn Write) -> Result<Vec<MoeStepRecord>, MoeRunError> {
    let options = &trainer.setup().common.options;
    let mut log = StepLog::new(options.log, options.steps, out);
    let mut records = Vec::new();
    while let Some(record) = trainer.step()? {
        log.step_with(&record.step, &record, &more(&record))?;
        trainer.save_if_due()?;
        records.push(record);
    }
    Ok(records)
}

/// Trains with auxiliary losses of all stages, of the last one alone and of none, and draws how uneven the load was.
fn curves(setup: MoeSetup, path: &Path, out: &mut dyn Write, err: &mut dyn Write) -> Result<(), MoeRunError> {
    let written = |source| TraceError { path: path.to_owned(), source };
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(written)?;
    }
    let mut drawn = Vec::new();
    for (name, injection) in
        [("all", Injection::All), ("last only", Injection::LastStage), ("none", Injection::Nowhere)]
    {
        let setup = MoeSetup { model: setup.model.clone().with_injection(injection), ..setup.clone() };
        let mut trainer = MoeTrainer::new(setup)?;
        let told: &mut dyn Write = if trainer.setup().common.options.log == LogFormat::Text { out } else { err };
        introduce(&trainer, told)?;
        let inner = trainer.inner_layers()?;
        let curve = LoadCurve::new(name.to_owned(), &train(&mut trainer, out)?, inner);
        let told: &mut dyn Write = if trainer.setup().common.options.log == LogFormat::Text { out } else { err };
        if let (Some(inner), Some(last)) = (curve.inner.last(), curve.last.last()) {
            let window = load_curves::WINDOW;
            writeln!(
                told,
                "max/mean load over the last {window} steps: inner stages {inner:.2}, last stage {last:.2}"
            )?;
        }
        drawn.push(curve);
    }
    std::fs::write(path, load_curves::svg("Load of experts", &drawn)).map_err(written)?;
    let told: &mut dyn Write = if setup.common.options.log == LogFormat::Text { out } else { err };
    Ok(writeln!(told, "curves: {}", path.display())?)
}

/// What follows a step's line.
fn more(record: &MoeStepRecord) -> String {
    let worst = record.imbalance.iter().copied().fold(1.0, f64::max);
    let (balance, z) = (record.load_balance, record.router_z);
    let ahead = if record.ahead > 0.0 { format!("  ahead {:.3}", record.ahead) } else { String::new() };
    format!("{ahead}  balance {balance:.3}  z {z:.2}  max/mean load {worst:.2}")
}

fn introduce(trainer: &MoeTrainer, told: &mut dyn Write) -> io::Result<()> {
    let (setup, model) = (trainer.setup(), &trainer.setup().model);
    run::introduce(&setup.common, setup.parameters, told)?;
    let (pattern, experts, top_k) = (&model.pattern, model.experts, model.top_k);
    let bias = if model.bias_rate > 0.0 { format!(", and a bias moved by {}", model.bias_rate) } else { String::new() };
    let injection = model.injection;
    writeln!(told, "blocks {pattern}, {experts} experts, {top_k} a token; auxiliary losses: {injection:?}{bias}")?;
    if !model.boundaries.is_empty() {
        writeln!(told, "stages begin at blocks 0, {:?}", model.boundaries)?;
    }
    match trainer.done() {
        0 => Ok(()),
        done => writeln!(told, "goes on after step {done}"),
    }
}

fn conclude(
    trainer: &mut MoeTrainer,
    leads: bool,
    records: &[MoeStepRecord],
    seconds: f64,
    told: &mut dyn Write,
) -> Result<(), MoeRunError> {
    let options = &trainer.setup().common.options;
    let (steps, tokens) = (records.len(), records.len() * options.batch * options.seq);
    match steps {
        0 => writeln!(told, "\nall steps were done before")?,
        _ => writeln!(told, "\n{steps} steps in {seconds:.1} s: {:.0} tokens/s", tokens as f64 / seconds)?,
    }
    if trainer.setup().common.auto.is_some() {
        writeln!(told, "\nthe schedule: {}\n", trainer.decision())?;
    }
    let evaluation = trainer.evaluate()?;
    let (loss, bigram, bytes) = (evaluation.loss, evaluation.bigram, evaluation.bytes);
    writeln!(told, "held-out loss {loss:.4} nats a byte over {bytes} bytes; a table of byte pairs has {bigram:.4}")?;
    if let Some(folder) = &trainer.setup().common.options.save {
        writeln!(told, "checkpoints: {} (for --resume)", folder.display())?;
    }
    loads(trainer, leads, records, told)?;
    let seed = trainer.setup().common.options.seed;
    let sampling = Sampling { length: SAMPLE, texts: 1, temperature: TEMPERATURE, seed };
    for text in trainer.sample(b'\n', &sampling)? {
        writeln!(told, "\na sample at temperature {TEMPERATURE}:\n{}", readable(&text))?;
    }
    Ok(())
}

/// Tells how even the experts' load was, and draws it and the last steps' timeline.
fn loads(
    trainer: &mut MoeTrainer,
    leads: bool,
    records: &[MoeStepRecord],
    told: &mut dyn Write,
) -> Result<(), MoeRunError> {
    let (steps, paths) = (records.len().min(LAST), trainer.setup().common.trace.clone());
    for (layer, imbalance) in expert_load::imbalance(records, LAST).into_iter().enumerate() {
        writeln!(told, "layer {layer} with experts: max/mean load {imbalance:.2} over the last {steps} steps")?;
    }
    if trainer.is_measured() {
        let (measured, (profile, predicted)) = (trainer.timeline(), trainer.predicted()?);
        if leads {
            paths.write(&measured, &predicted, &profile)?;
        }
        let (chrome, svg) = (paths.chrome.display(), paths.svg.display());
        writeln!(told, "{}: {chrome} (open it in ui.perfetto.dev), {svg}", measured.name)?;
        writeln!(told, "costs for `burn-pipeline simulate --profile`: {}", paths.profile.display())?;
    }
    if records.is_empty() {
        return Ok(());
    }
    let path = paths.svg.with_file_name("expert_load.svg");
    if leads {
        let title = format!("Load of experts, auxiliary losses of stages: {:?}", trainer.setup().model.injection);
        let written = std::fs::write(&path, expert_load::svg(&title, records, LAST));
        written.map_err(|source| TraceError { path: path.clone(), source })?;
    }
    Ok(writeln!(told, "load of experts: {}", path.display())?)
}
