//! This process among those that `mpirun` started.

use crate::error::MpiError;
use crate::link::MpiLink;
use crate::progress::{self, Command, Leave};
use burn::tensor::Device;
use mpi::Threading;
use mpi::topology::Communicator;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// The longest that `MPI_Abort` may take to end this process.
const ABORT_TIMEOUT: Duration = Duration::from_secs(5);

/// This process among those that `mpirun` started; opens links to the others.
///
/// Dropping it waits until all links of this process are closed and all ranks have closed theirs, then finalises MPI.
/// Make it before the pipelines that use its links, so that it is dropped after them.
#[derive(Debug)]
pub struct Mpi {
    commands: Sender<Command>,
    thread: Option<JoinHandle<()>>,
    rank: usize,
    ranks: usize,
    timeout: Duration,
}

impl Mpi {
    /// Initialises MPI, on a thread of its own. A process that `mpirun` has not started is rank 0 of 1.
    ///
    /// `timeout` is the longest that this may take, that opening a link may take, and that closing may take.
    ///
    /// # Errors
    /// If MPI was initialised before, or not all processes initialise it in time.
    pub fn connect(timeout: Duration) -> Result<Self, MpiError> {
        let (commands, taken) = channel();
        let (sender, place) = channel();
        let body = move || {
            let Some((universe, _)) = mpi::initialize_with_threading(Threading::Funneled) else { return };
            let world = universe.world();
            // It fails if the caller has given up.
            let _ = sender.send((world.rank() as usize, world.size() as usize));
            progress::run(universe, &taken);
        };
        let spawned = std::thread::Builder::new().name("mpi progress".to_owned()).spawn(body);
        let thread = spawned.map_err(|error| MpiError::Thread(error.to_string()))?;
        let (rank, ranks) = answer(&place, timeout, "MPI's initialisation", MpiError::AlreadyInitialised)?;
        Ok(Self { commands, thread: Some(thread), rank, ranks, timeout })
    }

    /// This process's rank among all.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of processes.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Opens a link over all ranks; what it receives is put on `device`. All ranks must call it, in the same order as for
    /// other links.
    ///
    /// # Errors
    /// If not all ranks call it in time.
    pub fn link(&self, device: Device) -> Result<MpiLink, MpiError> {
        self.link_among(0, device)
    }

    /// As [`Mpi::link`], over the ranks that pass the same colour, in the order of their ranks among all: for several
    /// pipelines in one job. All ranks must call it, whatever their colour. Colours are taken modulo 2^31.
    ///
    /// # Errors
    /// As [`Mpi::link`].
    pub fn link_among(&self, color: u32, device: Device) -> Result<MpiLink, MpiError> {
        let ended = MpiError::Ended("a link was opened");
        let (opened, opening) = channel();
        let color = (color & i32::MAX as u32) as i32;
        self.commands.send(Command::Open { color, opened }).map_err(|_| ended.clone())?;
        let opened = answer(&opening, self.timeout, "the opening of a link", ended)?;
        Ok(MpiLink::new(opened, self.commands.clone(), device.inner()))
    }

    /// Ends all processes of the job with this code, stopped ones included, after giving the other ranks up to two
    /// seconds to report what they know. Call it at the end of a `main` whose rank failed, once its pipelines are
    /// dropped. A process that cannot reach `mpirun` any more ends alone.
    pub fn end_job(self, code: i32) -> ! {
        let (aborting, is_aborting) = channel();
        let _ = self.commands.send(Command::Leave(Leave { within: self.timeout, abort: Some((code, aborting)) }));
        // It fails if the thread has ended.
        if is_aborting.recv().is_ok() {
            // MPI ends this process too, unless it waits for a machine that is gone.
            std::thread::sleep(ABORT_TIMEOUT);
        }
        std::process::exit(code)
    }
}

impl Drop for Mpi {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            // It fails if the thread has ended, and then the thread is joined at once.
            let _ = self.commands.send(Command::Leave(Leave { within: self.timeout, abort: None }));
            let _ = thread.join();
        }
    }
}

/// Waits for the progress thread; `ended` is the error if it has ended.
fn answer<T>(from: &Receiver<T>, timeout: Duration, what: &'static str, ended: MpiError) -> Result<T, MpiError> {
    from.recv_timeout(timeout).map_err(|error| match error {
        RecvTimeoutError::Timeout => MpiError::Timeout { what, seconds: timeout.as_secs_f64() },
        RecvTimeoutError::Disconnected => ended,
    })
}
