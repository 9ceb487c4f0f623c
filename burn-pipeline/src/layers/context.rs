//! What a layer is told: as it is made, and as it runs.

use crate::stage::depends_on_microbatch;
use crate::tensor_parallel::TensorGroup;
use burn::tensor::Device;

/// What a layer is made for.
#[derive(Clone, Debug)]
pub struct LayerContext {
    /// Its index among all layers of the model.
    pub layer: usize,
    /// Its index among the layers of its [`Sequential::repeat`](super::Sequential::repeat); 0 for a single layer.
    pub position: usize,
    /// The device to make it on.
    pub device: Device,
}

/// What a layer's forward runs for; see [`Layer::with_context`](super::Layer::with_context).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ForwardContext {
    /// The layer's index among all layers of the model.
    pub layer: usize,
    /// The stage that holds it; numbers that depend on this depend on the cut.
    pub stage: usize,
    /// The number of stages.
    pub stages: usize,
    pub(super) microbatch: usize,
}

impl ForwardContext {
    /// The microbatch's index in the whole batch.
    ///
    /// A captured stage whose forward asks for it is recorded for each microbatch, whatever
    /// [`Tuning::record_every`](crate::execute::Tuning::record_every) says.
    pub fn microbatch(&self) -> usize {
        depends_on_microbatch();
        self.microbatch
    }
}

/// The ranks over which a layer can be cut.
#[derive(Clone, Debug)]
pub struct LayerGroups {
    /// The tensor-parallel group of its stage, for the layers of [`nn`](crate::nn).
    pub group: TensorGroup,
    /// The data-parallel replicas of its stage, for weights that are cut over them.
    pub replicas: TensorGroup,
}
