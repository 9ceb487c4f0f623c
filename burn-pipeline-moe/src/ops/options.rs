//! What the operations take beside tensors.

use burn::tensor::DType;
use std::any::Any;
use std::sync::{Arc, OnceLock};

/// How tokens are routed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RouteOptions {
    /// Experts a token goes to.
    pub top_k: usize,
    /// Score experts one by one instead of with a softmax.
    pub sigmoid: bool,
    /// Divide the gates of a token by their sum.
    pub normalize: bool,
}

/// How many buckets of losses there are: one for each kind of [`AuxiliaryLosses`](crate::auxiliary::AuxiliaryLosses).
pub const BUCKETS: usize = 3;

/// What the losses of each bucket weigh.
pub type InjectedWeights = [f64; BUCKETS];

/// What the losses of one call have in common.
#[derive(Debug)]
pub(super) struct SharedGradients {
    pub(super) weights: InjectedWeights,
    pub(super) dtype: DType,
    /// The gradient of each bucket, in the backend's own tensors; known when the backward comes to the first loss.
    pub(super) gradients: OnceLock<Box<dyn Any + Send + Sync>>,
}

/// A loss's place among those that are injected together.
#[derive(Debug, Clone)]
pub struct InjectedLoss {
    pub(super) bucket: usize,
    pub(super) of: Arc<SharedGradients>,
}
