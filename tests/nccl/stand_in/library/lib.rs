//! A stand-in for CUDA's driver and NCCL on machines without a GPU: a test tool, which says nothing of speed.
//!
//! It is one library under two names, `libcuda.so` and `libnccl.so`, with the symbols that CubeCL's CUDA runtime and
//! `burn-pipeline-nccl` open. Device memory is the process's own memory, every queue is a thread, and communicators deliver
//! through files that their processes map. It has no processors: it refuses kernels.
//!
//! Guarantees: it keeps the rules of the two libraries, and a process that breaks one ends with status 70 and the name of
//! the rule ([`broken`](mod@broken)): it does not get away with luck.
//!
//! 1. What is queued on a stream runs in order, behind the host, and behind the events that the stream waits for (`queue.rs`).
//! 2. Every use of device memory is checked when it is queued: two uses of which one writes must have an order, made by
//!    streams, events, or a wait of the host (`order.rs`, vector clocks as in ThreadSanitizer); memory must be there, and
//!    is not freed while a transfer may use it (`memory.rs`).
//! 3. Calls of NCCL return before they have done their work. Until the caller has polled that a group is in the queue, the
//!    stream and the communicator must be left alone (`communicator.rs`, `group.rs`).
//! 4. A send waits for its receive. All transfers of a group run side by side, groups of a stream one after the other
//!    (`transfer.rs`, `sums.rs`). Both ends must name the same type and count.
//! 5. Queues of several processes that wait for each other in a circle are found and named (`board.rs`).
//! 6. Faults come on request, by environment variables (`faults.rs`). Collectives are written down for tests that count them (`calls.rs`).
//!
//! Reading order: `order.rs`, `queue.rs`, `memory.rs`, `driver.rs`, `copies.rs`; `room.rs`, `communicator.rs`, `group.rs`, `transfer.rs`,
//! `sums.rs`, `board.rs`, `nccl.rs`; `faults.rs`, `calls.rs`, `broken.rs`.

#![allow(non_snake_case, reason = "exported functions have the names of the libraries'")]
#![allow(missing_docs, clippy::missing_safety_doc, reason = "nothing calls this but through those names")]
#![allow(clippy::unwrap_used, reason = "a test tool fails by panicking")]

mod board;
mod broken;
mod calls;
mod communicator;
mod copies;
mod driver;
mod faults;
mod group;
mod memory;
mod nccl;
mod order;
mod queue;
mod room;
mod sums;
mod transfer;
