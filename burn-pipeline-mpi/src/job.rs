//! This process as one of those that `mpirun` started.

use crate::error::MpiError;
use crate::link::MpiLink;
use crate::progress::{self, Command, Leave};
use crate::traffic::REPORT_TIMEOUT;
use burn::tensor::Device;
use burn_pipeline::link::Link;
use burn_pipeline::link::kit::{LONGEST_TIMEOUT, ended_within};
use mpi::Threading;
use parking_lot::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The longest that `MPI_Abort` may take to end this process.
const ABORT_TIMEOUT: Duration = Duration::from_secs(5);

/// This process as one of those that `mpirun` started; opens links to the others.
///
/// Dropping it tells the other ranks that this one leaves. It then waits until all links of this process are closed
/// and all ranks have closed theirs and have dropped their own `Mpi`, and finalises MPI. If that does not happen
/// within the timeout (two seconds once a rank has failed), or if another rank ends the job, MPI is not finalised,
/// and `mpirun` reports that. Make it before the pipelines that use its links, so that it is dropped after them.
#[derive(Debug)]
pub struct Mpi {
    commands: Sender<Command>,
    thread: JoinHandle<()>,
    /// A link over all ranks, on which they meet before they open another one together.
    lobby: Mutex<MpiLink>,
    rank: usize,
    ranks: usize,
    timeout: Duration,
}

/// How much longer the progress thread may take than everything that it waits for.
const MARGIN: Duration = Duration::from_secs(2);

impl Mpi {
    /// Initialises MPI, on a separate thread. A process that `mpirun` has not started is rank 0 of 1.
    ///
    /// `timeout` applies to this call, to opening a link, and to closing.
    ///
    /// # Errors
    /// Returns [`MpiError`] if MPI was already initialised, or not all processes initialise it in time.
    pub fn connect(timeout: Duration) -> Result<Self, MpiError> {
        let timeout = timeout.min(LONGEST_TIMEOUT);
        let (commands, taken) = channel();
        let (started, starting) = channel();
        let body = move || {
            let Some((universe, _)) = mpi::initialize_with_threading(Threading::Funneled) else { return };
            progress::run(universe, &taken, &started);
        };
        let spawned = std::thread::Builder::new().name("mpi progress".to_owned()).spawn(body);
        let thread = spawned.map_err(|error| MpiError::Thread(error.to_string()))?;
        let lobby = answer(&starting, timeout, "MPI's initialisation", MpiError::AlreadyInitialised)?;
        // It only carries gathers, so the device does not matter.
        let lobby = MpiLink::new(lobby, commands.clone(), Device::default());
        let (rank, ranks) = (lobby.rank(), lobby.ranks());
        Ok(Self { commands, thread, lobby: Mutex::new(lobby), rank, ranks, timeout })
    }

    /// This process's rank among all.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of processes.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Opens a link over all ranks. Received tensors are put on `device`. All ranks must call it, in the same order
    /// as for other links.
    ///
    /// # Errors
    /// Returns [`MpiError`], naming a rank, if not all ranks call it in time, or at once if one of them has dropped its
    /// `Mpi`. Afterwards no link can be opened.
    pub fn link(&self, device: Device) -> Result<MpiLink, MpiError> {
        self.link_among(0, device)
    }

    /// As [`Mpi::link`], over the ranks that pass the same colour, in the order of their ranks among all. Use it
    /// for several pipelines in one job. All ranks must call it, whatever their colour. Colours are taken modulo
    /// 2^31.
    ///
    /// # Errors
    /// As [`Mpi::link`].
    pub fn link_among(&self, color: u32, device: Device) -> Result<MpiLink, MpiError> {
        let ended = MpiError::Ended("a link was opened");
        let deadline = Instant::now() + self.timeout;
        // Opening waits for all ranks and cannot be cancelled, so it begins only once all of them are here.
        let mut lobby = self.lobby.lock();
        if let Err(error) = lobby.barrier(deadline) {
            lobby.abort(error.to_string());
            return Err(MpiError::NotAll(error));
        }
        let (opened, opening) = channel();
        let color = (color & i32::MAX as u32) as i32;
        self.commands.send(Command::Open { color, opened }).map_err(|_| ended.clone())?;
        let left = deadline.saturating_duration_since(Instant::now()) + MARGIN;
        let opened = answer(&opening, left, "the opening of a link", ended)?;
        Ok(MpiLink::new(opened, self.commands.clone(), device.inner()))
    }

    /// Ends all processes of the job with this code, including stopped ones, after giving the other ranks time to
    /// report errors: two seconds once a rank has failed, else the timeout. Call it at the end of a `main` whose
    /// rank failed, after its pipelines are dropped. A process that cannot reach `mpirun` any more ends alone.
    pub fn end_job(self, code: i32) -> ! {
        let (aborting, is_aborting) = channel();
        let _ = self.commands.send(Command::Leave(Leave { within: self.timeout, abort: Some((code, aborting)) }));
        // This fails if the thread has ended, or waits within MPI for a lost rank.
        if is_aborting.recv_timeout(self.timeout + MARGIN).is_ok() {
            // MPI ends this process too, unless it waits for a lost machine.
            std::thread::sleep(ABORT_TIMEOUT);
        }
        std::process::exit(code)
    }
}

impl Drop for Mpi {
    fn drop(&mut self) {
        // This fails if the thread has ended.
        let _ = self.commands.send(Command::Leave(Leave { within: self.timeout, abort: None }));
        if !ended_within(&self.thread, self.timeout + REPORT_TIMEOUT + MARGIN) {
            let rank = self.rank;
            tracing::warn!(rank, "MPI waits for a rank that is gone: this process ends without finalising it");
        }
    }
}

/// Waits for the progress thread; `ended` is the error if the thread has ended.
fn answer<T>(from: &Receiver<T>, timeout: Duration, what: &'static str, ended: MpiError) -> Result<T, MpiError> {
    from.recv_timeout(timeout).map_err(|error| match error {
        RecvTimeoutError::Timeout => MpiError::Timeout { what, seconds: timeout.as_secs_f64() },
        RecvTimeoutError::Disconnected => ended,
    })
}
