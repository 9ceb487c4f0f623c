//! What decides whether a captured stage fits a call: forms, shapes and element types, and nothing of the values.

use super::parameters::{ParameterForm, Parameters};
use crate::stage::boundary::AnyTensor;
use crate::stage::boundary::{Payload, PayloadPart};
use crate::stage::engine::call::ForwardCall;
use burn::backend::Dispatch;
use burn::backend::ops::{BoolTensorOps, FloatTensorOps, IntTensorOps};
use burn::tensor::{DType, Device, Shape};

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum PartForm {
    Tensor(Vec<usize>, DType),
    Structure(usize),
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

impl Signature {
    /// A call of this form, of zeros.
    pub(super) fn call(&self, device: &Device) -> ForwardCall {
        let payload = |parts: &[PartForm]| Payload::from_parts(parts.iter().map(|part| part.zeros(device)));
        ForwardCall {
            microbatch: 0,
            input: payload(&self.input),
            extra: payload(&self.extra),
            target: self.target.as_deref().map(payload),
            ends_route: self.ends_route,
            wants_input_gradient: self.wants_input_gradient,
        }
    }
}

impl PartForm {
    fn zeros(&self, device: &Device) -> PayloadPart {
        let (shape, dtype) = match self {
            PartForm::Structure(form) => return PayloadPart::Tag(*form),
            PartForm::Tensor(shape, dtype) => (Shape::from(shape.clone()), *dtype),
        };
        let device = device.clone().inner();
        let device = device.as_dispatch();
        PayloadPart::Tensor(AnyTensor::from_dispatch(match dtype {
            dtype if dtype.is_bool() => Dispatch::bool_zeros(shape, device, dtype.into()),
            dtype if dtype.is_int() || dtype.is_uint() => Dispatch::int_zeros(shape, device, dtype.into()),
            dtype => Dispatch::float_zeros(shape, device, dtype.into()),
        }))
    }
}

fn forms(payload: &Payload) -> Vec<PartForm> {
    let form = |part: &PayloadPart| match part {
        PayloadPart::Tensor(tensor) => PartForm::Tensor(tensor.shape().to_vec(), tensor.dtype()),
        PayloadPart::Tag(form) => PartForm::Structure(*form),
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
