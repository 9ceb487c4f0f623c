//! Ranks as processes over MPI (feature `mpi`): on one machine, or on as many as a hostfile names.
//!
//! Guarantees: a send never blocks the rank that sends; messages of one rank to another keep their order; every
//! wait ends at its deadline, and says of every rank whether it still answers; a rank that fails tells all others
//! at once; tensors are serialised once and, on devices whose memory the host sees, not copied on either side.
//!
//! 1. [`Mpi::connect`] starts a progress thread, the only one that calls MPI (`MPI_THREAD_FUNNELED` is enough).
//!    Ranks compute meanwhile: see `progress.rs`.
//! 2. [`Mpi::link`] opens a link over a communicator of its own, so that nothing else that uses MPI, and no other
//!    link, gets into its messages; with colours it opens one link a group of ranks.
//! 3. A message is a letter (its frame), and one transfer a tensor behind it. Letters are found by a matched probe,
//!    tensors are received where their letter says how long they are. From the third message of equal shapes on, or
//!    from the first where stages' metadata are known ([`Link::expect`](crate::link::Link::expect)), the letter is short,
//!    and the receives are posted before it comes.
//! 4. A group of ranks has a communicator of its own ([`MpiLink::form_groups`](crate::link::Link::form_groups)): all
//!    ranks make them together, in the order of one list, so that none waits for another. Sums go over it by messages,
//!    added in the order of ranks: `MPI_Allreduce` may add in another order, and then threads and processes would differ.
//! 5. A gather is a letter from each rank to each other: it can then be told which rank is missing, which
//!    `MPI_Allgather` cannot. Rows are a few numbers.
//! 6. A wait that has used half of its time asks every rank what it is doing. A progress thread answers even while
//!    its rank computes, so a rank that does not answer is gone.
//!
//! # What can be promised when a process dies
//!
//! By default Open MPI's `mpirun` ends the whole job as soon as a process is killed or ends with a code other than 0:
//! nothing is left behind and `mpirun` names the rank, but the other ranks are killed before they can say anything.
//! With `mpirun --enable-recovery` they live on: every one returns an error that names the lost rank within its
//! deadline. A process that is stopped is no news to `mpirun` in either mode, and the ranks find out the same way.
//! MPI itself cannot go on without a rank (that takes ULFM, which Open MPI 4 does not have), so a program whose rank
//! failed should end with [`Mpi::end_job`], which gives the other ranks time to report and then makes `mpirun` end
//! all processes, stopped ones included (it also removes the shared memory that Open MPI leaves behind a killed rank).
//! With `--enable-recovery`, `mpirun` itself ends with code 0 whatever the ranks end with. Errors inside MPI end the
//! job, as MPI's default handler has it.

mod coming;
mod in_flight;
mod link;
mod progress;
mod traffic;

pub use coming::ReceiveCounters;
pub use link::MpiLink;

use super::{letter, mailbox};
use burn::tensor::Device;
use mpi::Threading;
use progress::{Leave, Order};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long the end of a job may take.
const END: Duration = Duration::from_secs(5);

/// Why MPI cannot be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum MpiError {
    /// It was initialised before, and can be only once in a process.
    #[error("MPI was initialised in this process before; keep the first `Mpi`, and open several links with it")]
    Again,
    /// No thread.
    #[error("the progress thread cannot be started: {0}")]
    Thread(String),
    /// Some ranks did not come.
    #[error(
        "not all processes came within {seconds:.1} s to {what}; was every one started, by the same `mpirun`, with the same program?"
    )]
    Late {
        /// What they should have come to.
        what: &'static str,
        /// How long was waited.
        seconds: f64,
    },
    /// The progress thread has ended.
    #[error("the progress thread has ended while {0}")]
    Ended(&'static str),
}

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
