//! Ranks of `burn-pipeline` on NVIDIA GPUs, over NCCL: one process for each GPU, or one thread for each GPU of a process.
//!
//! The link, `NcclLink`, needs the feature `cuda`. Without it the crate builds and
//! tests what needs no CUDA: how ranks agree on the order of transfers, how long a link waits, and how it ends.
//!
//! Guarantees: tensors go from GPU to GPU, in a queue of their own, while ranks compute; a send never blocks the rank
//! that sends; messages from one rank to another keep their order; queues of different ranks never wait in a circle,
//! whatever is sent (`host/pairing.rs`, with a proof); every wait ends at its deadline, the link's own waits and its drop
//! included (`host/timeout.rs`, `host/ending.rs`); memory that the GPU may still use is never freed (`host/flights.rs`);
//! a rank that fails or is lost makes all others abort and return an error that names it.
//!
//! 1. The ranks connect over TCP, at `MASTER_ADDR` and `MASTER_PORT` (`NcclLink::connect`), or over a link that they have
//!    already, such as MPI's (`NcclLink::by_link`). The connections stay: frames, gathers, failures and questions travel
//!    over them, NCCL carries nothing but the bytes of tensors, and a lost rank is noticed without NCCL. A message with
//!    tensors that are not on this rank's GPU goes over the connection as a whole.
//! 2. Rank 0 makes NCCL's id, and all ranks get it by a gather. Joining does not block: it ends at the deadline, or when
//!    another rank is lost. Neighbours exchange a few bytes at once, because NCCL connects ranks at the first transfer.
//! 3. A rank has one communicator and one queue, used by one thread (`cuda/progress.rs`). A tensor that is sent is first offered
//!    to its receiver. Pairs of ranks agree what goes next, and all that they have for each other then is one NCCL group,
//!    in both directions.
//! 4. `Ordering` says how transfers keep their order relative to CubeCL's queues: on the host, or by events over the
//!    whole context.
//! 5. Sums over groups of ranks are NCCL's, on communicators that are split off in the order of
//!    [`Link::form_groups`](burn_pipeline::link::Link::form_groups). So are the collectives of ranks that hold a stage together, tensor
//!    parallelism (`cuda/own.rs`): one split makes the communicators of all their groups.
//! 6. While anything is in the queue, the thread polls for errors of NCCL and watches the time, as long as the pipeline's
//!    timeout lasts. An error, or a transfer that takes too long, aborts the communicators, which empties the queue, and
//!    is reported to all ranks.
//!
//! Any failure closes the link, a panic in a stage's code too: what is in the queue cannot be taken back
//! ([`Link::recover`](burn_pipeline::link::Link::recover)).
//!
//! 7. A rank whose link is dropped leaves when nothing is left to send, in the queue, or agreed on, and tells the others, which
//!    go on without it.
//!
//! What is proved, and what is not: no machine with a GPU has run this yet. The repository's tests run the whole link, and CubeCL's
//! CUDA runtime beneath it, over a stand-in for the driver and NCCL (`tests/nccl/stand_in`), which keeps and checks their
//! rules of order, memory and groups, in 2 and 4 processes; stages that several ranks hold together, and spread vocabularies, compute on the host
//! there. That leaves open: kernels, and so tensors that are copied before they
//! are sent (padded rows, views) and computing on the GPU; NCCL's own transports, and how it ends when a rank is lost; that events over a
//! context cover CubeCL's queues; speed. The other tests in `tests/nccl` are for that.
//!
//! Nothing of CUDA is needed to build the link: driver and NCCL are opened at run time (`libnccl.so`, by that name: the
//! Python wheel has only `libnccl.so.2`, make a link). Two rules of CubeCL matter: do not use its `to_device` between GPUs
//! or its collectives beside this link, because their communicators would have to agree in order with this link's; and do
//! not run a capture of Burn's (`capture()`) while `Ordering::Context` is used.
//!
//! Reading order: in `cuda`, `link.rs` (the rank's own thread), `progress.rs`, `exchange.rs`, `collect.rs` and `flight.rs` (the thread
//! that calls NCCL); in `host`, `pairing.rs` (what goes next), `timeout.rs`, `ending.rs` and `flights.rs` (bounds and the end); then in `cuda` `order.rs`
//! and `tensors.rs` (CubeCL's queues and memory), `communicator.rs` and `gpu.rs` (NCCL and the driver).

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(any(test, feature = "cuda", fuzzing))]
#[cfg_attr(fuzzing, allow(dead_code, reason = "the door leads to some of it"))]
mod host;

#[cfg(feature = "cuda")]
pub use cuda::{NcclError, NcclLink, NcclOptions, Ordering};
