//! Ranks of `burn-pipeline` as processes over MPI: on one machine, or on all machines of a hostfile.
//!
//! ```no_run
//! use burn::tensor::Device;
//! use burn_pipeline::link::Link;
//! use burn_pipeline_mpi::Mpi;
//! use std::time::Duration;
//!
//! // In each process that `mpirun` starts. Drop the pipeline that gets the link before `mpi`.
//! let mpi = Mpi::connect(Duration::from_secs(60))?;
//! let link: Box<dyn Link> = Box::new(mpi.link(Device::flex())?);
//! # Ok::<(), burn_pipeline_mpi::MpiError>(())
//! ```
//!
//! Guarantees: a send never blocks the sending rank; messages from one rank to another keep their order; every wait
//! ends at its deadline, including waits at start and end, with an error that says which ranks still answer; a rank
//! that fails or leaves tells all others at once; tensors are serialised once and, on devices whose memory the host
//! sees, not copied on either side.
//!
//! 1. [`Mpi::connect`] starts a progress thread, the only thread that calls MPI, so `MPI_THREAD_FUNNELED` is
//!    enough. It moves messages while ranks compute (`progress.rs`).
//! 2. [`Mpi::link`] opens a link over a communicator of its own, so its messages mix with no other link's and no
//!    other MPI user's. [`Mpi::link_among`] opens one link for each group of ranks. Making a communicator waits for
//!    all ranks and cannot be cancelled, so they first meet on a link that exists from the start: a rank that never
//!    comes is named in time, and a rank that has dropped its [`Mpi`] at once.
//! 3. A message is an envelope with its frame, and one transfer for each tensor. Envelopes are found by a matched
//!    probe. Tensors are received when their frame has given their lengths. If messages repeat, their receives are
//!    posted before the envelope arrives (`incoming.rs`).
//! 4. Sums over ranks are made of messages, in rank order: `MPI_Allreduce` may add in another order, and results would
//!    differ from those of threads. For the same reason a gather is an envelope from each rank to every other, and
//!    `MPI_Allgather` could not say which rank is missing.
//! 5. A wait that has used half of its time asks every rank what it is doing. A progress thread answers even while
//!    its rank computes, so a rank that does not answer is lost. A wait for a rank that builds, reads or writes is
//!    extended.
//! 6. A call that failed on a rank closes nothing: tensors travel beside the envelopes, so the envelope that divides
//!    two calls ([`Link::recover`](burn_pipeline::link::Link::recover)) waits for the tensors before it (`lane.rs`).
//!
//! # When a process dies
//!
//! By default, Open MPI's `mpirun` ends the whole job as soon as a process is killed or ends with a code other than 0.
//! Nothing is left behind, and `mpirun` names the rank, but the other ranks are killed before they can report
//! anything. With `mpirun --enable-recovery` they live on: each returns an error that names the lost rank within
//! its deadline. In neither mode does `mpirun` notice a stopped process; the other ranks notice it at their
//! deadlines.
//!
//! MPI itself cannot continue without a rank (that takes ULFM, which Open MPI 4 does not have). So a program whose
//! rank failed should end with [`Mpi::end_job`]. It gives the other ranks time to report, then makes `mpirun` end
//! all processes, including stopped ones, and remove their shared memory. With `--enable-recovery`, `mpirun` itself
//! always ends with code 0. Errors inside MPI end the job, as MPI's default handler does.

mod error;
mod in_flight;
mod incoming;
mod job;
mod lane;
mod link;
mod progress;
mod repeats;
mod traffic;

pub use error::MpiError;
pub use incoming::ReceiveCounters;
pub use job::Mpi;
pub use link::MpiLink;
