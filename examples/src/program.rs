//! What `train_gpt` and `train_moe` share around their training: ranks as threads or processes, and the exit code.
//!
//! Guarantees: every failure ends the program with one message. The exit code is 2 for invalid flags, 3 if
//! a rank failed or was lost, and 1 for any other failure.
//!
//! 1. `--processes` starts this program again under `mpirun`, once per rank ([`processes`]).
//! 2. Otherwise the ranks are threads of this process, or this process is one rank and opens its end of the link.
//! 3. Every rank trains; only rank 0 prints.

use crate::console::Console;
use crate::moe::options::MoeOptionsError;
use crate::network::{self, NetworkError};
use crate::options::LinkName;
use crate::options_error::OptionsError;
use crate::processes::{self, LOST, ProcessesError};
use crate::setup::Setup;
use crate::traces::TraceError;
use crate::training::TrainError;
use burn_pipeline::link::{Launch, Link};
#[cfg(feature = "mpi")]
use burn_pipeline_mpi::{Mpi, MpiError};
use std::ffi::OsString;
use std::io::{self, Write};

/// How long processes may take to find each other, and to end together.
#[cfg(feature = "mpi")]
const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(60);

/// Why a run ended early.
#[derive(thiserror::Error)]
pub enum RunError {
    /// The command line cannot be parsed, or requests help.
    #[error(transparent)]
    Arguments(#[from] clap::Error),
    /// The flags are invalid.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// The flags of experts are invalid.
    #[error(transparent)]
    MoeOptions(#[from] MoeOptionsError),
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
    /// A file cannot be written.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// Standard output or standard error is closed.
    #[error("the output cannot be written: {0}")]
    Output(#[from] io::Error),
}

burn_pipeline::debug_as_text!(RunError);

impl RunError {
    /// The process's exit code.
    pub fn exit_code(&self) -> u8 {
        match self {
            RunError::Options(_) | RunError::MoeOptions(_) => 2,
            RunError::Train(error) if error.is_of_a_rank() => LOST,
            RunError::Arguments(error) => error.exit_code() as u8,
            _ => 1,
        }
    }
}

/// Runs `train` on this process's ranks with the checked flags; returns the exit code.
pub fn run<S: AsRef<Setup>>(
    setup: Result<S, RunError>,
    train: impl FnOnce(S, Option<Box<dyn Link>>, Console<'_>) -> Result<(), RunError>,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> u8 {
    let setup = match setup {
        Ok(setup) => setup,
        Err(RunError::Arguments(error)) => {
            // Help goes to standard output, errors to standard error. A closed stream is ignored.
            let _ = if error.use_stderr() { write!(err, "{error}") } else { write!(out, "{error}") };
            return error.exit_code() as u8;
        }
        Err(error) => return report(&error, err),
    };
    let options = &setup.as_ref().options;
    if let Some(processes) = options.processes {
        let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
        let code = processes::run(options, processes, &arguments, err);
        return code.unwrap_or_else(|error| report(&error.into(), err));
    }
    let done = match options.link {
        LinkName::Threads => {
            let leading = Console::new(true, options.log, out, err);
            setup.as_ref().trace.prepare().map_err(RunError::from).and_then(|()| train(setup, None, leading))
        }
        LinkName::Mpi => return over_mpi(setup, train, out, err),
        LinkName::Tcp | LinkName::Nccl => over_network(setup, train, out, err),
    };
    done.map_or_else(|error| report(&error, err), |()| 0)
}

/// Prints one message; returns the exit code.
fn report(error: &RunError, err: &mut dyn Write) -> u8 {
    // A closed standard error is ignored. The message is written at once, since ranks that fail together share a
    // terminal.
    let _ = err.write_all(format!("error: {error}\n").as_bytes());
    error.exit_code()
}

/// This process is one of the ranks that `mpirun` started.
#[cfg(feature = "mpi")]
fn over_mpi<S: AsRef<Setup>>(
    setup: S,
    train: impl FnOnce(S, Option<Box<dyn Link>>, Console<'_>) -> Result<(), RunError>,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> u8 {
    let mpi = match Mpi::connect(TIMEOUT) {
        Ok(mpi) => mpi,
        Err(error) => return report(&error.into(), err),
    };
    let leads = mpi.rank() == 0;
    let done = mpi.link(setup.as_ref().device.clone()).map_err(RunError::from).and_then(|link| {
        if leads {
            setup.as_ref().trace.prepare()?;
        }
        let log = setup.as_ref().options.log;
        train(setup, Some(Box::new(link)), Console::new(leads, log, out, err))
    });
    match done {
        Ok(()) => 0,
        // MPI cannot continue without a rank. If this process just ended, stopped processes would remain.
        Err(error) => mpi.end_job(i32::from(report(&error, err))),
    }
}

/// The flags were refused before: this build has no MPI.
#[cfg(not(feature = "mpi"))]
fn over_mpi<S>(
    _: S,
    _: impl FnOnce(S, Option<Box<dyn Link>>, Console<'_>) -> Result<(), RunError>,
    _: &mut dyn Write,
    err: &mut dyn Write,
) -> u8 {
    report(&OptionsError::NoMpi.into(), err)
}

/// This process is one of the ranks that a launcher started.
fn over_network<S: AsRef<Setup>>(
    setup: S,
    train: impl FnOnce(S, Option<Box<dyn Link>>, Console<'_>) -> Result<(), RunError>,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> Result<(), RunError> {
    let launch = Launch::from_environment().map_err(OptionsError::from)?.ok_or(OptionsError::NoLauncher)?;
    let leads = launch.rank == 0;
    if leads {
        setup.as_ref().trace.prepare()?;
    }
    let (link, log) = (network::open(setup.as_ref(), &launch)?, setup.as_ref().options.log);
    train(setup, Some(link), Console::new(leads, log, out, err))
}
