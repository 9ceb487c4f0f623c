//! A mock of CUDA's driver and NCCL for machines without a GPU. A test tool: it says nothing about speed.
//!
//! One library under two names, `libcuda.so` and `libnccl.so`, with the symbols that CubeCL's CUDA runtime and
//! `burn-pipeline-nccl` load. Device memory is the process's own memory, every queue is a thread, and communicators
//! deliver through files mapped by their processes. Its processors interpret the PTX that CubeCL compiles (`ptx/`).
//! It is a GPU of compute capability 7.5 without matrix instructions, so that CubeCL does not compile any.
//! Both libraries are loaded by name at run time, so the link and CubeCL's runtime below it run unchanged.
//!
//! Guarantees: it enforces the rules of both libraries. A process that breaks a rule ends with status 70 and the
//! rule's name ([`broken`](mod@broken)), even if the call would have worked by luck.
//!
//! 1. Jobs on a stream run in order, later than the call, and after the events and values that the stream waits for
//!    (`queue.rs`, `values.rs`). A call that frees memory waits for the whole device, and blocks launches meanwhile, as
//!    the driver's may.
//! 2. Every use of device memory is checked when it is queued (a kernel's when it has run). If one of two uses writes,
//!    they must be ordered by streams, events, or a wait of the host (`order.rs`, vector clocks as in
//!    ThreadSanitizer). Memory must be allocated, and is not freed while a transfer may use it (`memory.rs`).
//! 3. NCCL's calls return before their work is done. Until the caller has polled that a group is in the queue, it
//!    must not use the stream or the communicator (`communicator.rs`, `group.rs`).
//! 4. A send waits for its receive. All transfers of a group run concurrently, the groups of a stream one after the
//!    other (`transfer.rs`, `sums.rs`). Both ends must name the same type and count.
//! 5. Queues of several processes that wait for each other in a cycle are found and named (`board.rs`).
//! 6. Kernels run in their stream. Every access of a thread must be aligned, and lie within one block of memory that
//!    was allocated at the launch. Which words a kernel has read and written is known when it has run; then they are
//!    checked like other uses, against the order that the launch had (`modules.rs`, `order.rs`). Not checked: races
//!    between the threads of one kernel; a read of memory that nothing has written (new memory is poisoned); one
//!    tensor's place used for another one, where both lie in the same block.
//! 7. Environment variables set faults (`faults.rs`), and that of two ranks the higher one must launch first.
//!    Collectives and streams' priorities are recorded for tests that count them (`calls.rs`).
//!
//! Reading order: `order.rs`, `queue.rs`, `memory.rs`, `driver.rs`, `copies.rs`, `values.rs`, `modules.rs`, `ptx/`;
//! `room.rs`, `communicator.rs`, `group.rs`, `transfer.rs`, `sums.rs`, `board.rs`, `nccl.rs`; `faults.rs`, `calls.rs`,
//! `broken.rs`.

#![allow(non_snake_case, reason = "exported functions have the names of the libraries'")]
#![allow(missing_docs, clippy::missing_safety_doc, reason = "nothing calls this but through those names")]
#![allow(clippy::unwrap_used, reason = "a test tool fails by panicking")]

mod allocation;
mod board;
mod broken;
mod calls;
mod communicator;
mod copies;
mod driver;
mod faults;
mod group;
mod memory;
mod modules;
mod nccl;
mod order;
mod ptx;
mod queue;
mod room;
mod sums;
mod transfer;
mod values;
