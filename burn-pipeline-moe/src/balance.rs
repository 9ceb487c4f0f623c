//! Balancing experts without a loss: after each step, every router's bias moves towards an even load.
//!
//! The method is from DeepSeek-AI, "DeepSeek-V3" (2024), section 2.1.2, after Wang et al., "Auxiliary-Loss-Free Load
//! Balancing" (2024). The bias is added to scores only when experts are chosen, so balancing changes no gradient.
//!
//! The bias moves in its own type, which should be f32: under `Builder::precision` it is the f32 master that moves,
//! also where the router computes with a half-precision copy. Without a precision, a bias in half precision stops
//! moving once `rate` is below half a unit of its last place.
//!
//! Guarantees: all copies of a router get the same bias, on data-parallel replicas and on both routes of a
//! bidirectional placement, for any schedule, cut and transport. Every rank gets the same rows, and loads are whole
//! numbers, so the order of addition does not matter.
//!
//! 1. Each layer's load travels to the loss in the rows that [`observation_rows`](crate::auxiliary::observation_rows)
//!    writes, and from there to all ranks.
//! 2. [`Stage::after_step`](burn_pipeline::stage::Stage::after_step) gives a stage the rows of all microbatches since
//!    the previous step. The stage adds those of its own layers with [`loads`].
//! 3. Its blocks pass the loads to their routers: [`Block::with_updated_bias`], [`Router::with_updated_bias`].
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use burn_pipeline_moe::balance::loads;
//! use burn_pipeline_moe::router::RouterConfig;
//!
//! // Two microbatches of a model of two layers and two experts; this stage has layer 1.
//! let rows = |load: [f64; 2]| [[0.0, 0.0, 0.0, 0.0, 7.0, 7.0], [0.0, 0.0, 0.0, 0.0, load[0], load[1]]].concat();
//! let load = loads(&[rows([5.0, 1.0]), rows([6.0, 0.0])], 2, 1..2);
//! assert_eq!(load, [[11.0, 1.0]]);
//! let router = RouterConfig::new(4, 2).with_expert_bias(true).init(&Device::flex());
//! let router = router.with_updated_bias(&load[0], 0.25);
//! let bias = router.bias.map(|bias| bias.val().into_data().iter::<f32>().collect::<Vec<_>>());
//! assert_eq!(bias, Some(vec![-0.25, 0.25]));
//! ```

use crate::auxiliary::COLUMNS;
#[cfg(doc)]
use crate::{layers::Block, router::Router};
use std::ops::Range;

/// The number of choices for each expert of the model's `layers`, summed over all microbatches: one list per layer, in
/// order.
///
/// `observed` has one list of numbers per microbatch. It starts with the rows of
/// [`observation_rows`](crate::auxiliary::observation_rows), the model's layers in order. A missing row counts as
/// zeros.
pub fn loads(observed: &[Vec<f64>], experts: usize, layers: Range<usize>) -> Vec<Vec<f64>> {
    let of = |layer: usize| {
        let start = layer * (COLUMNS + experts) + COLUMNS;
        let mut sum = vec![0.0; experts];
        for row in observed.iter().filter_map(|numbers| numbers.get(start..start + experts)) {
            sum.iter_mut().zip(row).for_each(|(sum, load)| *sum += load);
        }
        sum
    };
    layers.map(of).collect()
}
