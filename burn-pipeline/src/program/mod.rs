//! A stage captured once as Burn's IR, cut into programs, and replayed for every microbatch.
//!
//! Guarantees: the programs of a stage compute bit for bit what Burn's autodiff computes for it, and split the
//! backward for real: the input's gradient now, the weights' later. Work that nothing reads is dropped, and
//! storage is released at its last use. A program is a value: it prints, it has a cost, and what it holds between
//! its parts is known before it runs.
//!
//! 1. A stage's forward and its seeded backward are recorded once (`stage::Captured` does it) as a list of
//!    operations with tensors at its edges: what arrives, parameters, seeds, outputs, gradients.
//! 2. The list is cut: `F` is what outputs need; `I` what the input's gradients need beyond that; `W` what is
//!    left for the gradients of the weights; `B` is `I` and `W` in the order in which they were recorded. A stage
//!    of whose input no gradient is wanted gets as `I` what several weights' gradients share.
//! 3. Last uses are found along `F, I, W` (and `F, B`): a tensor is given up where it is read for the last time,
//!    so a backend may write in its place.
//! 4. A program is replayed with `burn_router`'s interpreter on the stage's own device. Operations of backend
//!    extensions that are kernels there are called as such ([`CapturedOp`]).
//!
//! The split is that of Zero Bubble (arXiv:2401.10241); PyTorch does it on its autograd graph
//! (`torch/distributed/pipelining/_backward.py`). The crates `burn-ir` and `burn-router` are not made for direct
//! use, hence the exact pins and the feature `traced`.

mod cost;
mod custom;
mod display;
mod liveness;
mod merge;
mod op_name;
mod part;
mod recording;
mod replay;
mod slices;
mod stage_programs;
mod storage;

pub use custom::{CaptureTensor, CapturedOp, OperandSpec, captured_for, record_op};
pub use merge::{MergedWeight, Product};
pub use part::{Operation, Phase, Program};
pub use stage_programs::StagePrograms;

pub(crate) use custom::{CustomOps, capturing};
pub(crate) use recording::{Edges, Recording};
pub(crate) use replay::{NO_REPLAY, Replay, interpreter, on_device};
