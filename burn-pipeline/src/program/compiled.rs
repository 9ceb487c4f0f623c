//! Programs compiled by `burn-pipeline-compile`, for the one backend that it supports: Flex.
//!
//! Guarantees: a compiled program reads, leaves and returns the same tensors as its operations. So a microbatch may
//! run one of a stage's programs compiled and another operation by operation.

use super::error::ProgramError;
use super::replay::{Replay, Sums};
use burn::backend::flex::FlexTensor;
use burn::backend::ir::{OperationIr, TensorId, TensorIr};
use burn::backend::{BackendTensor, DispatchDevice, DispatchKindConversion, DispatchTensor, Flex};
use burn::tensor::Device;
use burn_pipeline_compile::{Bf16, Memory, Mismatch, Summary, Tensors};
use std::collections::HashSet;
use std::fmt::{self, Display, Formatter};
use std::ops::Range;

/// Returns true if there is a compiler for this device.
pub(crate) fn compiles(device: &Device) -> bool {
    matches!(device.clone().inner().as_dispatch(), DispatchDevice::Flex(_))
}

/// A compiled program.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Compiled {
    steps: burn_pipeline_compile::Compiled,
    summary: Summary,
}

impl Compiled {
    /// Compiles these operations, after which the tensors in `kept` exist; `rounded` says whether operands of
    /// matmuls are rounded.
    pub(crate) fn new(operations: &[OperationIr], kept: HashSet<TensorId>, rounded: Option<Bf16>) -> Self {
        let steps = burn_pipeline_compile::Compiled::new(operations, kept, rounded);
        let summary = steps.summary();
        Self { steps, summary }
    }

    pub(crate) fn pieces(&self) -> usize {
        self.steps.len()
    }

    /// The most bytes alive during a run that starts with this memory; leaves the memory as it is after the run.
    pub(crate) fn peak(&self, memory: &mut Memory) -> usize {
        memory.run(&self.steps)
    }

    /// Returns true if all its operations are compiled.
    pub(crate) fn is_whole(&self) -> bool {
        self.summary.interpreted.is_empty()
    }

    pub(crate) fn run(
        &self,
        pieces: Range<usize>,
        replay: &mut dyn Replay,
        sums: &mut Sums,
    ) -> Result<(), ProgramError> {
        self.steps.run(pieces, &mut Replayed { replay, sums })
    }
}

impl Display for Compiled {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n{}", self.summary, self.steps)
    }
}

/// The tensors of a replay, and the running sums that its results are added to.
struct Replayed<'a> {
    replay: &'a mut dyn Replay,
    sums: &'a mut Sums,
}

fn flex(tensor: DispatchTensor) -> FlexTensor {
    match <DispatchTensor as DispatchKindConversion<Flex>>::try_into_backend(tensor) {
        Ok(BackendTensor::Float(value) | BackendTensor::Int(value) | BackendTensor::Bool(value)) => value,
        Ok(other) => panic!("a program for Flex holds a {} tensor", other.name()),
        Err(reason) => panic!("a program for Flex holds a tensor of another backend: {reason}"),
    }
}

impl From<Mismatch> for ProgramError {
    fn from(Mismatch { operation, expected, got, .. }: Mismatch) -> Self {
        match operation {
            Some(operation) => ProgramError::Operation { operation, expected, got },
            None => ProgramError::Given { expected, got },
        }
    }
}

impl Tensors for Replayed<'_> {
    type Error = ProgramError;

    fn read(&mut self, tensor: &TensorIr) -> FlexTensor {
        flex(self.replay.take(tensor))
    }

    fn sum(&mut self, kept: TensorId) -> Option<FlexTensor> {
        self.sums.get_mut(&kept)?.take().map(flex)
    }

    fn write(&mut self, tensor: &TensorIr, value: FlexTensor) {
        let value = match tensor.dtype {
            dtype if dtype.is_bool() => BackendTensor::Bool(value),
            dtype if dtype.is_int() || dtype.is_uint() => BackendTensor::Int(value),
            _ => BackendTensor::Float(value),
        };
        let value = <DispatchTensor as DispatchKindConversion<Flex>>::from_backend(value);
        if let Err(reason) = self.replay.feed(tensor.id, value) {
            panic!("a program for Flex runs on another backend: {reason}");
        }
    }

    fn interpret(&mut self, operation: &OperationIr) -> Result<(), ProgramError> {
        self.replay.run(std::slice::from_ref(operation))
    }
}
