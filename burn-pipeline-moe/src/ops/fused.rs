//! What Burn's fusion must know of outputs before the operations run: [`forms`] in its own types.

use super::forms::{self, Form};
use super::{InjectedWeights, RouteOptions};
use burn::backend::fusion::custom::TensorSpec;
use burn::tensor::DType;

fn form(tensor: &TensorSpec) -> Form {
    (tensor.shape.clone(), tensor.dtype)
}

fn spec((shape, dtype): Form) -> TensorSpec {
    TensorSpec::new(shape, dtype)
}

pub(super) fn z_loss(logits: &TensorSpec) -> (TensorSpec, TensorSpec) {
    forms::z_loss(&form(logits)).map(spec).into()
}

pub(super) fn route(
    logits: &TensorSpec,
    _bias: &TensorSpec,
    options: &RouteOptions,
) -> (TensorSpec, TensorSpec, TensorSpec) {
    forms::route(&form(logits), options).map(spec).into()
}

pub(super) fn place(
    experts: &TensorSpec,
    load: &TensorSpec,
    _capacity: &usize,
) -> (TensorSpec, TensorSpec, TensorSpec) {
    forms::place(&experts.shape, &load.shape).map(spec).into()
}

pub(super) fn injected(
    _scale: &TensorSpec,
    _weights: &InjectedWeights,
    dtype: &DType,
) -> (TensorSpec, TensorSpec, TensorSpec) {
    forms::injected(*dtype).map(spec).into()
}
