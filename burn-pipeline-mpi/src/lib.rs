//! Ranks of `burn-pipeline` as processes over MPI: on one machine, or on all that a hostfile names.
//!
//! ```no_run
//! use burn::tensor::Device;
//! use burn_pipeline::link::Link;
//! use burn_pipeline_mpi::Mpi;
//! use std::time::Duration;
//!
//! // In each of the processes that `mpirun` starts; the pipeline that gets the link must be dropped before `mpi`.
//! let mpi = Mpi::connect(Duration::from_secs(60))?;
//! let link: Box<dyn Link> = Box::new(mpi.link(Device::flex())?);
//! # Ok::<(), burn_pipeline_mpi::MpiError>(())
//! ```
//!
//! Guarantees: a send never blocks the rank that sends; messages from one rank to another keep their order; every wait
//! ends at its deadline, those of starting and ending included, with an error that says of every rank whether it still
//! answers; a rank that fails or leaves informs all others at once; tensors are serialised once and, on devices whose memory the host sees, not copied on either side.
//!
//! 1. [`Mpi::connect`] starts a progress thread, the only thread that calls MPI, so that `MPI_THREAD_FUNNELED` is enough.
//!    It moves messages while ranks compute (`progress.rs`).
//! 2. [`Mpi::link`] opens a link over a communicator of its own, so that its messages mix with those of no other link and
//!    of no other user of MPI. [`Mpi::link_among`] opens one link for each group of ranks. Making a communicator waits for all
//!    ranks, so they meet before it on a link that is there from the start: one that never comes is named in time, and one
//!    that has dropped its [`Mpi`] at once.
//! 3. A message is an envelope with its frame, and one transfer for each tensor. Envelopes are found by a matched probe.
//!    Tensors are received when their frame has said how long they are. Where messages repeat, or stages' metadata is
//!    known ([`Link::expect`](burn_pipeline::link::Link::expect)), their receives are posted before the envelope arrives
//!    (`incoming.rs`).
//! 4. A group of ranks has a communicator of its own ([`Link::form_groups`](burn_pipeline::link::Link::form_groups)). All
//!    ranks make the communicators together, in the order of one list, so that none waits for another. Sums are made of
//!    messages, in rank order: `MPI_Allreduce` may add in another order, and results would differ from those of threads.
//! 5. A gather is an envelope from each rank to each other, because `MPI_Allgather` cannot say which rank is missing.
//! 6. A wait that has used half of its time asks every rank what it is doing. A progress thread answers even while
//!    its rank computes, so a rank that does not answer is gone. One that builds, reads or writes is waited for.
//! 7. Any failure closes the link, a panic in a stage's code too: tensors travel beside the envelopes, so what belongs to a failed call
//!    cannot be told by a marker among these ([`Link::recover`](burn_pipeline::link::Link::recover)).
//!
//! # When a process dies
//!
//! By default, Open MPI's `mpirun` ends the whole job as soon as a process is killed or ends with a code other than 0.
//! Nothing is left behind, and `mpirun` names the rank, but the other ranks are killed before they can report anything.
//! With `mpirun --enable-recovery` they live on: each returns an error that names the lost rank within its deadline. A
//! process that is stopped is not noticed by `mpirun` in either mode; the other ranks notice it at their deadlines.
//!
//! MPI itself cannot go on without a rank (that takes ULFM, which Open MPI 4 does not have). A program whose rank failed
//! should therefore end with [`Mpi::end_job`]. It gives the other ranks time to report, then makes `mpirun` end all
//! processes, stopped ones included, and remove their shared memory. With `--enable-recovery`, `mpirun` itself ends with
//! code 0 whatever the ranks end with. Errors inside MPI end the job, which is what MPI's default handler does.

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
