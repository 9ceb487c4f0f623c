//! The auxiliary losses and counts that a layer's routers compute.

use burn::tensor::{Int, Tensor};

/// Auxiliary losses of one layer's routers, one element each, and counts.
#[derive(Debug, Clone, Default)]
pub struct LayerAuxiliary {
    /// [`load_balance`](crate::losses::load_balance) of a layer with experts.
    pub load_balance: Option<Tensor<1>>,
    /// [`router_z`](crate::losses::router_z) of a layer with experts.
    pub router_z: Option<Tensor<1>>,
    /// [`depth_router`](crate::losses::depth_router) of a mixture of depths.
    pub depth_router: Option<Tensor<1>>,
    /// The number of choices for each expert, `[experts]`.
    pub load: Option<Tensor<1, Int>>,
    /// The number of dropped choices, `[1]`.
    pub dropped: Option<Tensor<1, Int>>,
}
