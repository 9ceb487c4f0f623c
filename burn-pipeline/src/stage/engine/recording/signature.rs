//! The key of a stage's programs: the shapes, element types and tags of a call, without its values. Programs of one
//! key may differ: recording a call finds its own.

use super::parameters::{ParameterSpec, Parameters};
use crate::payload::{Payload, PayloadPart};
use crate::stage::engine::call::ForwardCall;
use burn::tensor::{DType, Device};

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum PartSpec {
    Tensor(Vec<usize>, DType),
    /// A plain value: the recording contains what the forward makes of it.
    Host,
    Tag(usize),
}

/// What two calls must have in common to run the same programs.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(in crate::stage::engine) struct Signature {
    input: Vec<PartSpec>,
    extra: Vec<PartSpec>,
    target: Option<Vec<PartSpec>>,
    ends_route: bool,
    wants_input_gradient: bool,
    extra_gradients: Vec<bool>,
    parameters: Vec<ParameterSpec>,
    flags: Vec<bool>,
    /// Indices of outputs that likely have no gradient: they are recorded last.
    unused: Vec<usize>,
}

impl Signature {
    pub(in crate::stage::engine) fn new(call: &ForwardCall, parameters: &Parameters, unused: &[usize]) -> Self {
        Self {
            unused: unused.to_vec(),
            input: specs(&call.input),
            extra: specs(&call.extra),
            target: call.target.as_ref().filter(|_| call.ends_route).map(specs),
            ends_route: call.ends_route,
            wants_input_gradient: call.wants_input_gradient,
            extra_gradients: call.extra_gradients.clone(),
            parameters: parameters.specs.clone(),
            flags: parameters.flags.clone(),
        }
    }

    /// Returns true if the call has plain values.
    pub(in crate::stage::engine) fn has_plain_values(&self) -> bool {
        let mut parts = self.input.iter().chain(&self.extra).chain(self.target.iter().flatten());
        parts.any(|part| matches!(part, PartSpec::Host))
    }
}

fn specs(payload: &Payload) -> Vec<PartSpec> {
    let spec = |part: &PayloadPart| match part {
        PayloadPart::Tensor(tensor) => PartSpec::Tensor(tensor.shape().to_vec(), tensor.dtype()),
        PayloadPart::Host(_) => PartSpec::Host,
        PayloadPart::Tag(tag) => PartSpec::Tag(*tag),
    };
    payload.parts().map(spec).collect()
}

impl Parameters {
    /// The device that a call runs on: the module's, or the input's if the module has no parameter.
    pub(in crate::stage::engine) fn device(&self, call: &ForwardCall) -> Device {
        let first = self.values.first().map(|value| Device::new(burn::backend::TensorMetadata::device(value)));
        first.or_else(|| call.input.tensors().next().map(|tensor| tensor.device())).unwrap_or_default()
    }
}
