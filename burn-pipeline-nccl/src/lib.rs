//! Ranks of `burn-pipeline` on NVIDIA GPUs, over NCCL: one process a GPU, or one thread a GPU in a process.
//!
//! The link stands behind the feature `cuda`, so that the order of transfers is tested where no CUDA is.
//!
//! Guarantees: tensors go from GPU to GPU, on a queue of their own, while ranks compute; a send never blocks the rank
//! that sends; messages of one rank to another keep their order; queues of different ranks never stand in a circle,
//! whatever is sent (`pairing.rs`, with a proof); every wait ends at its deadline, and a rank that fails or is
//! lost makes all others abort and return an error that names it.
//!
//! 1. The ranks meet over TCP, at `MASTER_ADDR` and `MASTER_PORT` ([`NcclLink::connect`]), or over a link that they have
//!    already, MPI's for example ([`NcclLink::by_link`]). The connections stay: frames, gathers, failures and questions
//!    travel on them, so that NCCL carries nothing but tensors' bytes, and who is gone is known without it. A message
//!    with tensors that are not on this rank's GPU goes there whole.
//! 2. Rank 0 makes NCCL's id, and all get it by a gather. Joining does not block: it ends at the deadline, or when one
//!    of the others is lost. Neighbours exchange a few bytes at once, since a first transfer makes the connection.
//! 3. A rank has one communicator and one queue, used by one thread (`progress.rs`). What is sent is offered to its
//!    receiver; pairs of ranks agree what goes next, and all that they have for each other then is one NCCL group, both
//!    ways.
//! 4. Between CubeCL's queues and ours, [`Ordering`] keeps order: on the host, or by events over the whole context.
//! 5. Sums over groups of ranks are NCCL's, on communicators split off in the order of [`Link::form_groups`].
//! 6. While anything is in the queue, errors that NCCL finds later are asked for, and time is counted: on either, the
//!    communicators are aborted, which wakes the queue, and all ranks are told.
//!
//! Nothing of CUDA is needed to build it: driver and NCCL are opened at run time (`libnccl.so`, by that name: the Python
//! wheel has only `libnccl.so.2`, make a link). Rules of CubeCL that matter here: its `to_device` and its collectives are
//! not used beside this link (their communicators would have to agree in order with ours), and a capture of Burn's
//! (`capture()`) must not run while [`Ordering::Context`] is used.
//!
//! [`Link::form_groups`]: burn_pipeline::link::Link::form_groups

#[cfg(feature = "cuda")]
mod communicator;
#[cfg(any(test, feature = "cuda"))]
mod config;
#[cfg(feature = "cuda")]
mod error;
#[cfg(feature = "cuda")]
mod gpu;
#[cfg(feature = "cuda")]
mod link;
#[cfg(feature = "cuda")]
mod options;
#[cfg(feature = "cuda")]
mod order;
#[cfg(any(test, feature = "cuda"))]
mod pairing;
#[cfg(feature = "cuda")]
mod progress;
#[cfg(feature = "cuda")]
mod start;
#[cfg(any(test, feature = "cuda"))]
mod sums;
#[cfg(feature = "cuda")]
mod tensors;
#[cfg(feature = "cuda")]
mod turn;

#[cfg(feature = "cuda")]
pub use error::NcclError;
#[cfg(feature = "cuda")]
pub use link::NcclLink;
#[cfg(feature = "cuda")]
pub use options::NcclOptions;
#[cfg(feature = "cuda")]
pub use order::Ordering;
