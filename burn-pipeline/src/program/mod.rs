//! A stage captured once as Burn's IR, split into programs, and replayed for every microbatch.
//!
//! Guarantees: the programs of a stage compute bit for bit what Burn's autodiff computes for it, and really split the
//! backward: `I` computes the input's gradient, `W` the weights' gradients. Work that nothing reads is dropped, and
//! storage is released at its last use. A program is a value: it can be printed, and its cost and the memory held
//! between programs are known before it runs.
//!
//! 1. The engine of captured stages records a stage's forward and its seeded backward once: a list of operations with
//!    tensors at its edges (inputs, parameters, seeds, outputs, gradients; `recording`). It uses Burn's capture
//!    device (`capture_tensors`), which refuses by panicking.
//! 2. The list is split (`slices`): `F` is what the outputs need; `I` what the input's gradients need beyond that;
//!    `W` the rest of what the weights' gradients need; `B` is `I` and `W` in recorded order. If no gradient of the
//!    input is wanted, `I` is what several weights' gradients share.
//! 3. In each program, exchanges between the ranks of a group start early and are awaited late, with computation in
//!    between (`overlap`). Last uses are found along `F, I, W` and along `F, B` (`liveness`): the operation that
//!    reads a tensor for the last time releases it, so a backend may write the result in its place.
//! 4. `burn_router`'s interpreter replays a program on the stage's own device (`replay`), on any thread: all threads
//!    share the device's queue (`link/hand_over.rs`). Booleans, integers and floats are recorded in that device's own
//!    types. Operations of backend extensions with kernels for that device are called as such ([`CapturedOp`],
//!    `custom`). Alternatively a program is compiled ahead (`compiled`), which gives the same numbers up to rounding.
//! 5. `W` of several microbatches can run as one (`merge`).
//! 6. Random numbers come from a generator that the caller gives, or from the device's (`draws`).
//!
//! The split is that of Zero Bubble (arXiv:2401.10241); PyTorch does it on its autograd graph
//! (`torch/distributed/pipelining/_backward.py`). The crates `burn-ir` and `burn-router` promise no
//! stable interface, hence the exact versions in `Cargo.toml`.

mod capture_tensors;
mod compiled;
mod cost;
mod custom;
mod display;
mod draws;
mod error;
mod liveness;
mod matmuls;
mod merge;
mod overlap;
mod part;
mod recording;
mod replay;
mod slices;
mod stage_programs;
mod storage;

pub(crate) use burn_pipeline_compile::Bf16;
pub(crate) use compiled::compiles;
pub use custom::{CapturedOp, captured_for, record_op};
pub use error::ProgramError;
pub use matmuls::Matmuls;
pub(crate) use merge::Product;
pub(crate) use part::Phase;
pub use part::{Operation, Program};
pub use stage_programs::StagePrograms;

pub(crate) use capture_tensors::{alike, backward, configured, edge, gradient, leaf, lowered, placeholder};
pub(crate) use custom::{CustomOps, capturing, is_like, record, spec};
pub(crate) use draws::{draw, drawn_as};
pub(crate) use recording::{Edges, Recording};
pub(crate) use replay::{NO_REPLAY, Replay, Sums, computed, interpreter};
