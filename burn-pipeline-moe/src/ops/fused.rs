//! The outputs' [`specs`] in the types of Burn's fusion, which needs them before the operations run.

use super::options::{InjectedWeights, RouteOptions};
use super::specs::{self, Spec};
use burn::backend::fusion::custom::TensorSpec;
use burn::tensor::DType;

fn plain(tensor: &TensorSpec) -> Spec {
    (tensor.shape.clone(), tensor.dtype)
}

fn spec((shape, dtype): Spec) -> TensorSpec {
    TensorSpec::new(shape, dtype)
}

pub(super) fn z_loss(logits: &TensorSpec) -> (TensorSpec, TensorSpec) {
    specs::z_loss(&plain(logits)).map(spec).into()
}

pub(super) fn route(
    logits: &TensorSpec,
    _bias: &TensorSpec,
    options: &RouteOptions,
) -> (TensorSpec, TensorSpec, TensorSpec) {
    specs::route(&plain(logits), options).map(spec).into()
}

pub(super) fn place(
    experts: &TensorSpec,
    load: &TensorSpec,
    _capacity: &usize,
) -> (TensorSpec, TensorSpec, TensorSpec) {
    specs::place(&experts.shape, &load.shape).map(spec).into()
}

pub(super) fn injected(
    _scale: &TensorSpec,
    _weights: &InjectedWeights,
    dtype: &DType,
) -> (TensorSpec, TensorSpec, TensorSpec) {
    specs::injected(*dtype).map(spec).into()
}
