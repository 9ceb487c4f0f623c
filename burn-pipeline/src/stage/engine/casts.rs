//! Refuses forwards that cast to a float type that their device does not compute in.
//!
//! Burn computes in such types all the same, with wrong results. Parameters and buffers are checked when the stage is
//! built ([`computes_in`]); what a forward casts to is known only from a recording of it.
//!
//! 1. A captured stage is recorded anyway, and checked when its programs are made ([`refuse_types`]).
//! 2. A forward under plain autodiff is recorded before it runs, once for each signature, if the device lacks any
//!    float type ([`Casts::refuse`]). A recording runs the user's code once more and computes nothing; a counter
//!    in the forward then counts once too often, as it does when a capture is tried. Devices that lack no type, and
//!    Flex, need no recording.
//! 3. If a forward cannot be recorded, or must not be ([`Stage::skip_capture`]), and in evaluations, only the stage's
//!    outputs or its loss are checked ([`refuse_given`]). A second run of an evaluation could do harm: it may keep
//!    tensors for the next one (keys and values).

use super::call::ForwardCall;
use super::function::StageCode;
use super::recording::{Parameters, Recorded, Refusal, Signature, record};
use crate::payload::{AnyTensor, computes_in, is_cubecl};
use crate::stage::error::StageError;
use crate::stage::module::Stage;
use burn::tensor::{DType, Device};
use std::collections::HashSet;

/// The number of signatures that are remembered.
const REMEMBERED: usize = 256;

/// The float types that a device may lack.
const TYPES: [DType; 3] = [DType::BF16, DType::F16, DType::F64];

/// The forwards of a stage that were checked.
#[derive(Default)]
pub(super) struct Casts {
    capture: Option<Device>,
    /// True if the device lacks a type; `None` before the first forward.
    lacking: Option<bool>,
    known: HashSet<Signature>,
    /// True if a recording was refused.
    unseen: bool,
}

impl Casts {
    /// Refuses a forward that computes in a type that its device does not compute in, as far as it can be recorded.
    pub(super) fn refuse<M: Stage>(&mut self, code: &StageCode<'_, M>, call: &ForwardCall) -> Result<(), StageError> {
        if self.lacking == Some(false) || self.unseen {
            return Ok(());
        }
        let parameters = Parameters::of(code.module);
        if !*self.lacking.get_or_insert_with(|| lacks_a_type(&parameters.device(call))) {
            return Ok(());
        }
        let signature = Signature::new(call, &parameters, &[]);
        if self.known.contains(&signature) {
            return Ok(());
        }
        if code.module.skip_capture().is_some() {
            self.unseen = true;
            return Ok(());
        }
        match record(&mut self.capture, code, call, &parameters, &[]) {
            Ok(recorded) => {
                refuse_types(&recorded)?;
                self.saw(signature);
                Ok(())
            }
            Err(Refusal::Stage(error)) => Err(error),
            Err(Refusal::Cannot(reason)) => {
                tracing::debug!(reason, "the types that the stage casts to are not known, as it cannot be recorded");
                self.unseen = true;
                Ok(())
            }
        }
    }

    /// Remembers a forward that was checked.
    pub(super) fn saw(&mut self, signature: Signature) {
        if self.known.len() >= REMEMBERED {
            self.known.clear();
        }
        self.known.insert(signature);
    }

    /// Checks the results of a forward that could not be recorded.
    pub(super) fn refuse_given<'a>(&self, given: impl Iterator<Item = &'a AnyTensor>) -> Result<(), StageError> {
        if self.unseen { refuse_given(given) } else { Ok(()) }
    }

    /// Stops recording, because another engine has tried in vain.
    pub(super) fn cannot_record(&mut self) {
        self.unseen = true;
    }
}

/// Returns true if there is a float type that the device does not compute in. Only CubeCL's devices lack types;
/// others compute in every type that they create.
fn lacks_a_type(device: &Device) -> bool {
    is_cubecl(device) && TYPES.iter().any(|&dtype| computes_in(device, dtype).is_err())
}

/// Refuses a recorded forward and backward that compute in a float type that the device does not compute in.
pub(super) fn refuse_types(recorded: &Recorded) -> Result<(), StageError> {
    let types = recorded.recording.float_types().into_iter();
    types.map(|(operation, dtype)| (format!("its operation `{operation}`"), dtype)).try_for_each(|(place, dtype)| {
        computes_in(&recorded.device, dtype).map_err(|why| refused(&recorded.device, place, dtype, &why))
    })
}

/// Refuses results of a float type that their device does not compute in.
pub(in crate::stage) fn refuse_given<'a>(given: impl Iterator<Item = &'a AnyTensor>) -> Result<(), StageError> {
    given.filter(|tensor| tensor.dtype().is_float()).try_for_each(|tensor| {
        let (device, dtype) = (tensor.device(), tensor.dtype());
        computes_in(&device, dtype).map_err(|why| refused(&device, "what it gives".to_owned(), dtype, &why))
    })
}

fn refused(device: &Device, place: String, dtype: DType, why: &str) -> StageError {
    let why = format!("{:?} does not compute: {why}", device.clone().inner());
    StageError::ElementType { place: place.into(), dtype, why: why.into() }
}
