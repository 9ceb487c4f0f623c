//! Experts: gated feed-forward layers that run as one batched matmul, or as grouped matmuls over uneven numbers of
//! rows.
//!
//! Experts take uneven numbers of rows where the device has kernels for that and one rank holds them all. Elsewhere all
//! get equally many, because batched matmuls need shapes that follow from sizes alone.

use super::initial::SMALL;
use crate::ops::{grouped_matmul, has_kernels};
use burn::config::Config;
use burn::module::{Module, Param};
use burn::tensor::activation::silu;
use burn::tensor::{Device, Int, Tensor};
use burn_pipeline::ops::expert_matmul;
use burn_pipeline::tensor_parallel::TensorGroup;

/// The configuration of experts.
#[derive(Config, Debug)]
pub struct ExpertsConfig {
    /// Number of experts.
    pub experts: usize,
    /// Width of a token.
    pub d_model: usize,
    /// Width inside an expert.
    pub d_hidden: usize,
}

impl ExpertsConfig {
    /// Initializes the experts, without biases.
    pub fn init(&self, device: &Device) -> Experts {
        let (e, d, h) = (self.experts, self.d_model, self.d_hidden);
        Experts {
            gate: SMALL.init([e, d, h], device),
            up: SMALL.init([e, d, h], device),
            down: SMALL.init([e, h, d], device),
        }
    }
}

/// Gated feed-forward layers `down(silu(gate(x)) * up(x))`, one per expert, each on its own rows.
#[derive(Module, Debug)]
pub struct Experts {
    gate: Param<Tensor<3>>,
    up: Param<Tensor<3>>,
    down: Param<Tensor<3>>,
}

impl Experts {
    /// Returns true if their device has kernels of this crate.
    pub(super) fn have_kernels(&self) -> bool {
        has_kernels(&self.gate.val())
    }

    /// Keeps this rank's share of the experts, for a tensor-parallel group or for expert parallelism over replicas.
    ///
    /// # Panics
    /// Panics if they cannot be cut evenly over the group.
    pub fn cut(self, group: &TensorGroup) -> Self {
        group.share(self.gate.shape()[0], "experts");
        Self { gate: group.cut(self.gate, 0), up: group.cut(self.up, 0), down: group.cut(self.down, 0) }
    }

    /// The number of experts that this rank holds.
    pub fn count(&self) -> usize {
        self.gate.lazy_shape()[0]
    }

    /// Runs each expert on its rows `[experts, rows, d_model]`.
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let gate = silu(expert_matmul(x.clone(), &self.gate));
        expert_matmul(gate * expert_matmul(x, &self.up), &self.down)
    }

    /// Runs each expert on its rows of `[rows, d_model]`, from `offsets[e]` to `offsets[e + 1]`; see
    /// [`PackedRows`](crate::router::PackedRows).
    pub fn forward_packed(&self, x: Tensor<2>, offsets: Tensor<1, Int>) -> Tensor<2> {
        let gate = silu(grouped_matmul(x.clone(), &self.gate, offsets.clone()));
        let up = grouped_matmul(x, &self.up, offsets.clone());
        grouped_matmul(gate * up, &self.down, offsets)
    }
}
