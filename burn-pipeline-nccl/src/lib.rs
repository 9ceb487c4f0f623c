//! Ranks of `burn-pipeline` on NVIDIA GPUs, over NCCL: one process for each GPU, or one thread for each GPU of a
//! process.
//!
//! The link, `NcclLink`, needs the feature `cuda`. Without it the crate builds and tests only the parts that need
//! no CUDA: who launches a transfer first, and how long a link waits.
//!
//! Guarantees: tensors go from GPU to GPU, in queues of their own, while ranks compute; a send never blocks the sending
//! rank; messages from one rank to another keep their order; ranks never wait for each other in a cycle, whatever
//! is sent (`host/turns.rs`, with a proof); every wait ends at its deadline, including the link's own waits and its
//! drop (`host/timeout.rs`, `cuda/progress.rs`); memory that the GPU may still use is never freed
//! (`host/flights.rs`); a rank that fails or is lost makes all others abort and return an error that names it.
//!
//! 1. The ranks connect over TCP, at `MASTER_ADDR` and `MASTER_PORT` (`NcclLink::connect`), or over a link that
//!    they already have, such as MPI's (`NcclLink::by_link`). The connections stay: they carry frames, gathers,
//!    failures and questions, NCCL carries only the bytes of tensors, and a lost rank is noticed without NCCL. A
//!    message with tensors that are not on this rank's GPU goes entirely over the connection.
//! 2. Rank 0 makes NCCL's id, and all ranks get it by a gather. Joining does not block: it ends at the deadline, or
//!    when another rank is lost.
//! 3. Each direction between two ranks has a communicator and a queue of its own, made at its first message
//!    (`cuda/connect.rs`). One thread calls NCCL (`cuda/progress.rs`). The higher of two ranks launches a transfer
//!    first. So a message to a lower rank needs no reply, and one to a higher rank needs one
//!    (`docs/decisions/030-the-higher-rank-launches-first.md` in the repository).
//! 4. `Ordering` says how transfers are ordered relative to CubeCL's queues: on the host, or on the device.
//! 5. NCCL computes the sums of tied parameters, on communicators that are split off in the order of
//!    [`Collectives::form_sets`](burn_pipeline::link::Collectives::form_sets). It also runs the collectives of
//!    tensor-parallel groups (`cuda/own.rs`): one split makes the communicators of all these groups.
//! 6. While anything is in a queue, the thread polls for errors of NCCL and checks the time, up to the pipeline's
//!    timeout. An error, or a transfer that takes too long, aborts the communicators, which empties the queues, and
//!    is reported to all ranks. So any failure closes the link, even a panic in a stage's code: queued work cannot
//!    be taken back ([`Link::recover`](burn_pipeline::link::Link::recover)).
//! 7. A rank whose link is dropped leaves when nothing is left to send, to launch or in a queue. It tells the others,
//!    which continue without it, and serves until they have answered.
//!
//! What has run: on every change, the repository's tests run the link, and CubeCL's CUDA runtime beneath it, with mock
//! libraries for the CUDA driver and NCCL (`tests/nccl/stand_in`), in 1, 2 and 4 processes. These keep and check the
//! real ones' rules of order, memory and groups, block launches while memory is freed, and compute: they interpret
//! the kernels that CubeCL compiles, without matrix instructions. So padded rows, views and half precision are sent,
//! and pipelines train with computing on the device. Tensor-parallel groups and parallel vocabularies compute on the
//! host there. On one H100 with NVIDIA's libraries, conformance, collectives, a killed rank and every schedule ran
//! with the bits of threads, in processes that shared the GPU (`benches/results/2026-11-27-h100.md`). That was before
//! step 3 was as it is now: pairs of ranks then agreed on each transfer, in one queue, and events over the context
//! ordered transfers on the device. Untested are: that order on a GPU; several GPUs, and so NCCL's transports between
//! them and speed.
//!
//! Building the link needs nothing of CUDA: it opens driver and NCCL at run time (`libnccl.so`, by that name: the
//! Python wheel has only `libnccl.so.2`, so make a link). NCCL is called through `cudarc`: the crate `nccl-rs` is not
//! published and has long been unmaintained. Two rules of CubeCL apply. Do not use its `to_device`
//! between GPUs or its collectives together with this link, because their communicators would have to agree on an
//! order with this link's. Do not run a Burn capture (`capture()`) while `Ordering::Device` is used.
//!
//! Reading order: in `cuda`, `link.rs` (the rank's own thread), `progress.rs`, `exchange.rs`, `collect.rs`, `flight.rs`
//! and `connect.rs` (the thread that calls NCCL); in `host`, `turns.rs` (who launches when), `timeout.rs` and
//! `flights.rs` (how long it waits, and what it keeps); then in `cuda` `order.rs` and `tensors.rs` (CubeCL's queues
//! and memory), `queue.rs`, `communicator.rs` and `gpu.rs` (NCCL and the driver).

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(any(test, feature = "cuda", fuzzing))]
#[cfg_attr(fuzzing, allow(dead_code, reason = "fuzz targets use only some of it"))]
mod host;

#[cfg(feature = "cuda")]
pub use cuda::{NcclError, NcclLink, NcclOptions, Ordering};
