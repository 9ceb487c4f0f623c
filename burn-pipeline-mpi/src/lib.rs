//! Ranks of `burn-pipeline` as processes over MPI: on one machine, or on as many as a hostfile names.
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
//!    from the first where stages' metadata are known ([`Link::expect`](burn_pipeline::link::Link::expect)), the letter is short,
//!    and the receives are posted before it comes.
//! 4. A group of ranks has a communicator of its own ([`MpiLink::form_groups`](burn_pipeline::link::Link::form_groups)): all
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
mod error;
mod in_flight;
mod job;
mod link;
mod progress;
mod repeats;
mod traffic;

pub use coming::ReceiveCounters;
pub use error::MpiError;
pub use job::Mpi;
pub use link::MpiLink;
