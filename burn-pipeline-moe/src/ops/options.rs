//! Non-tensor arguments of operations.

use burn::tensor::DType;
use std::any::Any;
use std::sync::{Arc, OnceLock};

/// How tokens are routed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RouteOptions {
    /// Number of experts that a token goes to.
    pub top_k: usize,
    /// Score each expert with a sigmoid; otherwise all experts with a softmax.
    pub sigmoid: bool,
    /// Divide the gates of a token by their sum.
    pub normalize: bool,
}

/// The number of loss buckets: one for each kind of [`AuxiliaryLosses`](crate::auxiliary::AuxiliaryLosses).
pub const BUCKETS: usize = 3;

/// The weight of the losses of each bucket.
pub type InjectedWeights = [f64; BUCKETS];

/// The state shared by the losses of one call.
#[derive(Debug)]
pub(super) struct SharedGradients {
    pub(super) weights: InjectedWeights,
    pub(super) dtype: DType,
    /// The gradient of each bucket, as tensors of the backend; set when the backward reaches the first loss.
    pub(super) gradients: OnceLock<Box<dyn Any + Send + Sync>>,
}

/// One of the losses injected by one call.
#[derive(Debug, Clone)]
pub struct InjectedLoss {
    pub(super) bucket: usize,
    pub(super) of: Arc<SharedGradients>,
}
