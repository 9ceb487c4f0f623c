//! What `train_gpt` and `train_moe` have around their training: ranks as threads or processes, and the exit code.
//!
//! Guarantees: flags that no run can have end the program with one message and code 2; a run in which a rank failed or
//! was lost with one message and code 3; any other failure with one message and code 1.
//!
//! 1. `--processes` starts this program again under `mpirun`, once for each rank ([`processes`]).
//! 2. Otherwise the ranks are threads of this process, or this process is one rank and opens its end of the link.
//! 3. Every rank trains; rank 0 alone prints.

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

/// The longest that processes may take to find each other, and to end together.
#[cfg(feature = "mpi")]
const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(60);

/// Why a run ended early.
#[derive(thiserror::Error)]
pub enum RunError {
    /// The command line cannot be parsed, or asks for help.
    #[error(transparent)]
    Arguments(#[from] clap::Error),
    /// Flags that no run can have.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// Flags of experts that no run can have.
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

/// Runs `train` on this process's ranks with what the flags stand for; gives the exit code.
pub fn run<S: AsRef<Setup>>(
    setup: Result<S, RunError>,
    train: impl FnOnce(S, Option<Box<dyn Link>>, Console<'_>) -> Result<(), RunError>,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> u8 {
    let setup = match setup {
        Ok(setup) => setup,
        Err(RunError::Arguments(error)) => {
            // Help goes to standard output, refusals to standard error. That either may be closed is no failure.
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

/// Prints one message; gives the exit code.
fn report(error: &RunError, err: &mut dyn Write) -> u8 {
    // That standard error may be closed is no failure.
    // In one piece: ranks that fail together write to one terminal.
    let _ = err.write_all(format!("error: {error}\n").as_bytes());
    error.exit_code()
}

/// This process is one rank of those that `mpirun` started.
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
        // MPI cannot go on without a rank, and a process that merely ended would leave stopped ones behind.
        Err(error) => mpi.end_job(i32::from(report(&error, err))),
    }
}

/// The flags were refused before: nothing of MPI is in this build.
#[cfg(not(feature = "mpi"))]
fn over_mpi<S>(
    _: S,
    _: impl FnOnce(S, Option<Box<dyn Link>>, Console<'_>) -> Result<(), RunError>,
    _: &mut dyn Write,
    err: &mut dyn Write,
) -> u8 {
    report(&OptionsError::NoMpi.into(), err)
}

/// This process is one rank of those that a launcher started.
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
