//! The operations of a mixture of experts, below Burn's autodiff.
//!
//! [`MoeOps`] is a backend extension: on Flex and in captures its operations are composed of Burn's own, on CubeCL
//! devices (feature `cubecl-backend`) they are kernels, and over autodiff they have their own backward. Users call them
//! through functions on tensors:
//!
//! 1. [`route`](fn@route): scores, the best experts, gates, and the statistics for load balancing.
//! 2. [`z_loss`](fn@z_loss): the mean of squared log-sum-exps.
//! 3. [`PackedRows`]: tokens permuted into rows sorted by expert, and back.
//! 4. [`grouped_matmul`](fn@grouped_matmul): each expert's rows, whatever their number, times its own matrix.
//! 5. [`inject_weighted`]: gradients for losses beside hidden states. The forward is the identity; only the backward
//!    has a kernel.
//!
//! Kernels accumulate in f32 (f64 for f64), use no atomics and no shared memory, and are bitwise reproducible. A stage
//! that is captured for a CubeCL device records each operation as one node, forward and backward, and its replay runs
//! the kernels. A stage that is captured for another device records the composed operations.
//!
//! `backend.rs` has the trait, `autodiff.rs` the backwards, which `node.rs` runs. The file of each operation has its
//! public function and its composition.

mod autodiff;
mod backend;
mod captured;
#[cfg(feature = "fusion")]
mod fused;
mod grouped;
mod inject;
mod kernel_device;
#[cfg(feature = "cubecl-backend")]
mod kernels;
mod node;
mod options;
mod plain;
mod route;
mod rows;
mod specs;
mod top_k;
mod z_loss;

pub use backend::MoeOps;
pub use grouped::grouped_matmul;
pub(crate) use inject::sums_in;
pub use inject::{inject, inject_weighted};
pub use kernel_device::has_kernels;
pub use options::{BUCKETS, InjectedLoss, InjectedWeights, RouteOptions};
pub use route::{Routed, route};
pub use rows::PackedRows;
pub(crate) use rows::{collect, placed, with_zero_row};
pub(crate) use specs::{accumulator, holding_positions};
pub use top_k::top_k;
pub use z_loss::z_loss;
