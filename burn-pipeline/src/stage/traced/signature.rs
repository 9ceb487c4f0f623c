//! What decides whether a captured stage fits a call: forms, shapes and element types, and nothing of the values.

use super::parameters::{ParameterForm, Parameters};
use crate::stage::boundary::{Part, Payload};
use crate::stage::engine::ForwardCall;
use burn::tensor::{DType, Device};

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum PartForm {
    Tensor(Vec<usize>, DType),
    Form(usize),
}

/// The key under which a stage's programs are kept.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Signature {
    input: Vec<PartForm>,
    extra: Vec<PartForm>,
    target: Option<Vec<PartForm>>,
    ends_route: bool,
    wants_input_gradient: bool,
    parameters: Vec<ParameterForm>,
    flags: Vec<bool>,
}

impl Signature {
    pub(super) fn new(call: &ForwardCall, parameters: &Parameters) -> Self {
        Self {
            input: forms(&call.input),
            extra: forms(&call.extra),
            target: call.target.as_ref().filter(|_| call.ends_route).map(forms),
            ends_route: call.ends_route,
            wants_input_gradient: call.wants_input_gradient,
            parameters: parameters.forms.clone(),
            flags: parameters.flags.clone(),
        }
    }
}

fn forms(payload: &Payload) -> Vec<PartForm> {
    let form = |part: &Part| match part {
        Part::Tensor(tensor) => PartForm::Tensor(tensor.shape().to_vec(), tensor.dtype()),
        Part::Form(form) => PartForm::Form(*form),
    };
    payload.parts().map(form).collect()
}

impl Parameters {
    /// The device that a call runs on: that of the module, else that of what arrived.
    pub(super) fn device(&self, call: &ForwardCall) -> Device {
        let first = self.values.first().map(|value| Device::new(burn::backend::TensorMetadata::device(value)));
        first.or_else(|| call.input.tensors().next().map(|tensor| tensor.device())).unwrap_or_default()
    }
}
