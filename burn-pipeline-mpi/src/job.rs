//! This process among those that `mpirun` started.

use crate::error::MpiError;
use crate::link::MpiLink;
use crate::progress::{self, Leave, Order};
use burn::tensor::Device;
use mpi::Threading;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long the end of a job may take.
const END: Duration = Duration::from_secs(5);

/// This process's place among those that `mpirun` started; opens links to the others.
///
/// Dropping it waits until all links of this process are closed and all ranks have said goodbye, then finalises MPI.
/// It must therefore be dropped after the pipelines that use its links: make it first.
#[derive(Debug)]
pub struct Mpi {
    orders: Sender<Order>,
    thread: Option<JoinHandle<()>>,
    rank: usize,
    ranks: usize,
    timeout: Duration,
}

impl Mpi {
    /// Initialises MPI, on a thread of its own. A process that nobody started with `mpirun` is rank 0 of 1.
    ///
    /// `timeout` is the longest that this, opening links, and goodbyes may take.
    ///
    /// # Errors
    /// If MPI was initialised before, or the other processes do not come.
    pub fn connect(timeout: Duration) -> Result<Self, MpiError> {
        let (orders, taken) = channel();
        let (told, place) = channel();
        let body = move || {
            let Some((universe, _)) = mpi::initialize_with_threading(Threading::Funneled) else { return };
            let world = universe.world();
            let place = {
                use mpi::topology::Communicator;
                (world.rank() as usize, world.size() as usize)
            };
            // A send fails only where the caller has given up.
            let _ = told.send(place);
            progress::run(universe, &taken);
        };
        let spawned = std::thread::Builder::new().name("mpi progress".to_owned()).spawn(body);
        let thread = spawned.map_err(|error| MpiError::Thread(error.to_string()))?;
        match place.recv_timeout(timeout) {
            Ok((rank, ranks)) => Ok(Self { orders, thread: Some(thread), rank, ranks, timeout }),
            Err(RecvTimeoutError::Disconnected) => Err(MpiError::Again),
            Err(RecvTimeoutError::Timeout) => {
                Err(MpiError::Late { what: "MPI's initialisation", seconds: timeout.as_secs_f64() })
            }
        }
    }

    /// This process among all.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many processes there are.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Opens a link over all ranks; what it receives is brought to `device`. All ranks must call it, in the same
    /// order as any other links.
    ///
    /// # Errors
    /// If the other ranks do not come.
    pub fn link(&self, device: Device) -> Result<MpiLink, MpiError> {
        self.link_among(0, device)
    }

    /// As [`Mpi::link`], over the ranks that give the same colour, in the order of their ranks among all: pipelines
    /// beside each other in one job. All ranks must call it, whatever their colour. Colours are taken modulo 2^31.
    ///
    /// # Errors
    /// As [`Mpi::link`].
    pub fn link_among(&self, color: u32, device: Device) -> Result<MpiLink, MpiError> {
        let ended = || MpiError::Ended("a link was opened");
        let (opened, answer) = channel();
        let color = (color & i32::MAX as u32) as i32;
        self.orders.send(Order::Open { color, opened }).map_err(|_| ended())?;
        match answer.recv_timeout(self.timeout) {
            Ok(opened) => Ok(MpiLink::new(opened, self.orders.clone(), device.inner())),
            Err(RecvTimeoutError::Timeout) => {
                Err(MpiError::Late { what: "the opening of a link", seconds: self.timeout.as_secs_f64() })
            }
            Err(RecvTimeoutError::Disconnected) => Err(ended()),
        }
    }

    /// Ends all processes of the job with this code, stopped ones included, after giving the other ranks up to two
    /// seconds to report what they know. For the end of a `main` whose rank failed, once its pipelines are dropped. A
    /// process that cannot reach `mpirun` any more ends alone.
    pub fn end_job(self, code: i32) -> ! {
        let (told, about_to) = channel();
        let _ = self.orders.send(Order::Leave(Leave { within: self.timeout, kill_job: Some((code, told)) }));
        // It fails where the thread has ended.
        if about_to.recv().is_ok() {
            // MPI ends this process too, unless it waits for a machine that is gone.
            std::thread::sleep(END);
        }
        std::process::exit(code)
    }

    fn leave(&mut self) {
        // A send fails only where the thread has ended, and then it is joined at once.
        let _ = self.orders.send(Order::Leave(Leave { within: self.timeout, kill_job: None }));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Mpi {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.leave();
        }
    }
}
