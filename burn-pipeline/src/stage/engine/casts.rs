//! Refuses forwards that cast to a float type that their device does not compute in.
//!
//! Burn computes in such types all the same, with wrong results. Parameters and buffers are checked when the stage is
//! built ([`computes_in`]); what a forward casts to is known only from a recording of it.
//!
//! 1. A captured stage is recorded anyway, and checked when its programs are made ([`refuse_types`]).
//! 2. A forward under plain autodiff is recorded before it runs, once for each signature, if the device lacks any
//!    float type ([`SeededDraws::refuse_casts`]). A recording runs the user's code once more and computes nothing; a
//!    counter in the forward then counts once too often, as it does when a capture is tried. Devices that lack no
//!    type, and Flex, need no recording.
//! 3. If a forward cannot be recorded, or must not be ([`Stage::skip_capture`]), and in evaluations, only the stage's
//!    outputs or its loss are checked ([`refuse_given`]). A second run of an evaluation could do harm: it may keep
//!    tensors for the next one (keys and values).

use super::call::ForwardCall;
use super::function::StageCode;
use super::recording::{Parameters, Recorded};
use super::seeded::SeededDraws;
use crate::payload::{AnyTensor, computes_in, is_cubecl};
use crate::stage::error::StageError;
use crate::stage::module::Stage;
use burn::tensor::{DType, Device};

/// The float types that a device may lack.
const TYPES: [DType; 3] = [DType::BF16, DType::F16, DType::F64];

impl SeededDraws {
    /// Refuses a forward that computes in a type that its device does not compute in, as far as it can be recorded.
    pub(super) fn refuse_casts<M: Stage>(
        &mut self,
        code: &StageCode<'_, M>,
        call: &ForwardCall,
    ) -> Result<(), StageError> {
        if self.lacks_a_type == Some(false) || self.unseen {
            return Ok(());
        }
        let device = || Parameters::of(code.module).device(call);
        let lacks_a_type = *self.lacks_a_type.get_or_insert_with(|| lacks_a_type(&device()));
        if lacks_a_type { self.inspect(code, call, |_| true, refuse_types) } else { Ok(()) }
    }
}

/// Returns true if there is a float type that the device does not compute in. Only CubeCL's devices lack types;
/// others compute in every type that they create.
fn lacks_a_type(device: &Device) -> bool {
    is_cubecl(device) && TYPES.iter().any(|&dtype| computes_in(device, dtype).is_err())
}

/// Refuses a recorded forward and backward that compute in a float type that the device does not compute in.
pub(super) fn refuse_types(recorded: &Recorded) -> Result<(), StageError> {
    let types = recorded.recording.float_types();
    types
        .into_iter()
        .try_for_each(|(operation, dtype)| check(&recorded.device, dtype, || format!("its operation `{operation}`")))
}

/// Refuses results of a float type that their device does not compute in.
pub(in crate::stage) fn refuse_given<'a>(given: impl Iterator<Item = &'a AnyTensor>) -> Result<(), StageError> {
    let mut floats = given.filter(|tensor| tensor.dtype().is_float());
    floats.try_for_each(|tensor| check(&tensor.device(), tensor.dtype(), || "what it gives".to_owned()))
}

fn check(device: &Device, dtype: DType, place: impl FnOnce() -> String) -> Result<(), StageError> {
    computes_in(device, dtype).map_err(|why| {
        let why = format!("{:?} does not compute: {why}", device.clone().inner());
        StageError::ElementType { place: place().into(), dtype, why: why.into() }
    })
}
