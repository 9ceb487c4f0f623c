//! What a layer is told: as it is made, and as it runs.

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
    /// The microbatch's index in the whole batch.
    pub microbatch: usize,
}

/// The ranks over which a layer can be cut.
#[derive(Clone, Debug)]
pub struct LayerGroups {
    /// The tensor-parallel group of its stage, for the layers of [`nn`](crate::nn).
    pub group: TensorGroup,
    /// The data-parallel replicas of its stage, for weights that are cut over them.
    pub replicas: TensorGroup,
}
