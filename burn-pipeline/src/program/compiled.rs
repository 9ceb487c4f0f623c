//! Programs compiled by `burn-pipeline-compile`, for the one backend that it supports: Flex.
//!
//! Guarantees: a compiled program reads, leaves and returns the same tensors as its operations. So a microbatch may
//! run one of a stage's programs compiled and another operation by operation.

#[cfg(feature = "flex")]
pub(crate) use flex::{Bf16, Parts, compiles};
#[cfg(feature = "flex")]
pub(super) use flex::{Compiled, Memory, hold_less, hold_rounded};
#[cfg(not(feature = "flex"))]
pub(crate) use nothing::{Bf16, Parts, compiles};
#[cfg(not(feature = "flex"))]
pub(super) use nothing::{Compiled, Memory, hold_less, hold_rounded};

#[cfg(feature = "flex")]
mod flex {
    use crate::program::error::ProgramError;
    use crate::program::replay::{Replay, Sums};
    use burn::backend::flex::FlexTensor;
    use burn::backend::ir::{OperationIr, TensorId, TensorIr};
    use burn::backend::{BackendTensor, DispatchDevice, DispatchKindConversion, DispatchTensor, Flex};
    use burn::tensor::Device;
    pub(crate) use burn_pipeline_compile::{Bf16, Memory, Parts, hold_less, hold_rounded};
    use burn_pipeline_compile::{Mismatch, Summary, Tensors};
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
        pub(crate) fn new(operations: &[OperationIr], kept: HashSet<TensorId>, rounded: Option<Bf16>) -> Option<Self> {
            let steps = burn_pipeline_compile::Compiled::new(operations, kept, rounded);
            let summary = steps.summary();
            Some(Self { steps, summary })
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
}

#[cfg(not(feature = "flex"))]
mod nothing {
    use crate::program::error::ProgramError;
    use crate::program::replay::{Replay, Sums};
    use burn::backend::ir::{OperationIr, TensorId, TensorIr};
    use burn::tensor::Device;
    use std::collections::HashSet;
    use std::fmt::{self, Display, Formatter};
    use std::ops::Range;

    pub(crate) fn compiles(_: &Device) -> bool {
        false
    }

    pub(crate) fn hold_less(operations: &[OperationIr], _: &[bool]) -> Vec<OperationIr> {
        operations.to_vec()
    }

    pub(crate) fn hold_rounded(operations: &[OperationIr], _: &[bool]) -> Vec<OperationIr> {
        operations.to_vec()
    }

    /// No matmul is rounded or split.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(crate) enum Bf16 {}

    pub(crate) enum Parts {
        One,
        Two,
        Three,
    }

    impl Bf16 {
        pub(crate) fn detect(_: Parts) -> Option<Self> {
            None
        }

        pub(crate) fn rounds(self) -> bool {
            match self {}
        }

        pub(crate) fn name(self) -> &'static str {
            match self {}
        }

        pub(crate) fn is_on_tiles(self) -> bool {
            match self {}
        }
    }

    /// The memory of compiled programs.
    #[derive(Clone, Default)]
    pub(crate) struct Memory;

    impl Memory {
        pub(crate) fn feed(&mut self, _: &TensorIr, _: usize) {}

        pub(crate) fn release(&mut self, _: TensorId) {}
    }

    /// No program is compiled.
    #[derive(Clone, PartialEq, Debug)]
    pub(crate) enum Compiled {}

    impl Compiled {
        pub(crate) fn new(_: &[OperationIr], _: HashSet<TensorId>, _: Option<Bf16>) -> Option<Self> {
            None
        }

        pub(crate) fn pieces(&self) -> usize {
            match *self {}
        }

        pub(crate) fn peak(&self, _: &mut Memory) -> usize {
            match *self {}
        }

        pub(crate) fn is_whole(&self) -> bool {
            match *self {}
        }

        pub(crate) fn run(&self, _: Range<usize>, _: &mut dyn Replay, _: &mut Sums) -> Result<(), ProgramError> {
            match *self {}
        }
    }

    impl Display for Compiled {
        fn fmt(&self, _: &mut Formatter<'_>) -> fmt::Result {
            match *self {}
        }
    }
}
