//! State that a module's forward can change, such as running statistics.
//!
//! Guarantees: everything in Burn's `RunningState` is found, whatever module holds it. Nothing in the module changes.
//!
//! `Stage::forward` borrows the module, so it can change only what copies of the module share. Such state is found by
//! giving a copy other values: if the module itself then shows them, both share one state. The values are put back at
//! once. State that Burn's visitors do not see (such as an atomic) is not found.

use super::weights::{float_weights, with_weights};
use crate::payload::AnyTensor;
use burn::module::{Module, ParamId};
use burn::tensor::Shape;
use std::collections::HashMap;

/// The identifiers of the float state that the module's forward can change.
pub(in crate::stage) fn forward_state<M: Module>(module: &M) -> Vec<ParamId> {
    // Making a `valid` copy writes back updates that are kept aside.
    drop(module.valid());
    let values: HashMap<ParamId, AnyTensor> = float_weights(module).into_iter().collect();
    let marks = values.iter().map(|(&id, value)| (id, value.zeros(other_shape(&value.shape())))).collect();
    drop(with_weights(module.clone(), &marks));
    let shown = float_weights(module).into_iter();
    let shared: HashMap<ParamId, AnyTensor> = shown
        .filter_map(|(id, shown)| values.get(&id).filter(|v| v.shape() != shown.shape()).map(|v| (id, v.clone())))
        .collect();
    if !shared.is_empty() {
        drop(with_weights(module.clone(), &shared));
    }
    shared.into_keys().collect()
}

/// Another shape with as many dimensions, of one or two elements.
fn other_shape(shape: &Shape) -> Shape {
    let mut other = vec![1; shape.num_dims()];
    if let (Some(first), true) = (other.first_mut(), shape.num_elements() == 1) {
        *first = 2;
    }
    Shape::from(other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::module::Param;
    use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
    use burn::tensor::{Device, Tensor};

    #[derive(Module, Debug)]
    struct Layer {
        linear: Linear,
        norm: BatchNorm,
        one: BatchNorm,
        frozen: Param<Tensor<1>>,
    }

    #[test]
    fn running_statistics_are_found_and_left_as_they_are() {
        let device = Device::flex().autodiff();
        let layer = Layer {
            linear: LinearConfig::new(3, 3).init(&device),
            norm: BatchNormConfig::new(3).init(&device),
            one: BatchNormConfig::new(1).init(&device),
            frozen: Param::from_tensor(Tensor::<1>::ones([1], &device)).set_require_grad(false),
        };
        layer.norm.forward(Tensor::<2>::ones([4, 3], &device) * 2.0);
        let mut found = forward_state(&layer);
        let norms = [&layer.norm, &layer.one];
        let ids = |norm: &&BatchNorm| {
            let mean = float_weights(&norm.running_mean).remove(0).0;
            [mean, float_weights(&norm.running_var).remove(0).0]
        };
        let mut expected: Vec<ParamId> = norms.iter().flat_map(ids).collect();
        found.sort_unstable();
        expected.sort_unstable();
        assert_eq!(found, expected);
        let mean = layer.norm.running_mean.value().into_data().try_to_vec::<f32>().unwrap();
        assert_eq!(mean, [0.2; 3]);
        assert_eq!(layer.frozen.val().into_data().try_to_vec::<f32>().unwrap(), [1.0]);
    }
}
