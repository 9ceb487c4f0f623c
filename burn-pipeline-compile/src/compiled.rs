//! Compiled programs: made from a list of operations, and run step by step.
//!
//! Guarantees: a step reads only tensors that match the program; a run ends with an error at the first one that does
//! not. Steps can be run in several calls, in order.
//!
//! [`Compiled::new`] reads the operations as a graph, cleans it, and orders it into steps. [`Tensors`] is what a run
//! needs from its caller: the tensors, and an interpreter for operations that are not compiled.

use crate::clean::clean;
use crate::graph::{bytes, is_float, operation_name};
use crate::half::Half;
use crate::matmul::{add_matmul, matmul, multiply_one};
use crate::mismatch::Mismatch;
use crate::multiply::Bf16;
use crate::place::place;
use crate::read::read;
use crate::steps::{Step, Work, steps};
use crate::storage::Fresh;
use crate::view::view;
use burn::backend::flex::FlexTensor;
use burn::backend::ir::{OperationIr, TensorId, TensorIr, TensorStatus};
use std::collections::{BTreeMap, HashSet};
use std::fmt::{self, Display, Formatter};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::slice::from_raw_parts_mut;

/// A program compiled for CPUs. Its text has one line per step.
#[derive(Clone, PartialEq, Debug)]
pub struct Compiled {
    steps: Vec<Step>,
    /// The proof that operands of matmuls may be rounded, if they are.
    rounded: Option<Bf16>,
}

/// The tensors of a run, and the interpreter for operations that are not compiled. Tensors from it are compared with
/// the program before use.
pub trait Tensors {
    /// The error of an operation that was not run.
    type Error: From<Mismatch>;

    /// Returns a tensor, and releases it if its status is `ReadWrite`.
    fn read(&mut self, tensor: &TensorIr) -> FlexTensor;

    /// Stores a tensor that a step made.
    fn write(&mut self, tensor: &TensorIr, value: FlexTensor);

    /// Returns the running sum of a kept tensor that one matmul computes. The matmul is then added to the sum, and
    /// the written tensor is the sum. Returns `None` if there is no sum, or to leave the matmul alone.
    fn sum(&mut self, _kept: TensorId) -> Option<FlexTensor> {
        None
    }

    /// Runs an operation; the status of its tensors says which it releases.
    fn interpret(&mut self, operation: &OperationIr) -> Result<(), Self::Error>;
}

/// Statistics of a compiled program.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Summary {
    /// The number of regions, which run tile by tile.
    pub regions: usize,
    /// The number of operations in regions.
    pub fused: usize,
    /// The number of matmuls.
    pub matmuls: usize,
    /// True if their operands are rounded to `bf16`.
    pub rounded: bool,
    /// The number of convolutions, and gradients of their inputs and weights.
    pub convolutions: usize,
    /// The names of interpreted operations, with the number of each.
    pub interpreted: BTreeMap<String, usize>,
    /// Bytes that the steps read and write, without those that stay within a step.
    pub bytes: usize,
}

impl Compiled {
    /// Compiles a program: operations in order, whose tensors' status says where they are released. `kept` are the
    /// tensors that exist after it: earlier ones that are not released, and those that it makes for later. With the
    /// proof `rounded`, operands of matmuls are rounded to `bf16`.
    pub fn new(operations: &[OperationIr], kept: HashSet<TensorId>, rounded: Option<Bf16>) -> Self {
        let made: HashSet<TensorId> =
            operations.iter().flat_map(OperationIr::outputs).map(|tensor| tensor.id).collect();
        let mut seen = HashSet::new();
        let read_first = operations.iter().flat_map(OperationIr::nodes);
        let fed: Vec<TensorIr> =
            read_first.filter(|tensor| !made.contains(&tensor.id) && seen.insert(tensor.id)).cloned().collect();
        Self { steps: steps(&clean(read(operations, kept, rounded)), &fed), rounded }
    }

    pub(crate) fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// The number of steps.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Returns true if there are no steps.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Runs some steps. Stops at the first step that gets a tensor of another shape or element type than the
    /// program's ([`Mismatch`]), or whose operation the interpreter does not run.
    ///
    /// # Panics
    /// Panics if the program has fewer steps.
    pub fn run<T: Tensors>(&self, steps: Range<usize>, tensors: &mut T) -> Result<(), T::Error> {
        self.steps[steps].iter().try_for_each(|step| step.run(&mut Checked { tensors, all: &self.steps }, self.rounded))
    }

    /// Statistics of the program.
    pub fn summary(&self) -> Summary {
        let mut summary = Summary { rounded: self.rounded.is_some(), ..Summary::default() };
        for step in &self.steps {
            summary.bytes += step.bytes();
            match &step.work {
                Work::Region { region, made } => {
                    summary.regions += 1;
                    summary.fused += region.nodes;
                    summary.matmuls += usize::from(made.is_some());
                }
                Work::Matmul { .. } => summary.matmuls += 1,
                Work::Convolve(_) => summary.convolutions += 1,
                Work::Place(parts) => summary.matmuls += parts.iter().filter(|part| part.matmul).count(),
                Work::Interpret(op) => *summary.interpreted.entry(operation_name(op)).or_default() += 1,
                Work::Fill(_) | Work::View(_) => {}
            }
        }
        summary
    }
}

/// The tensors of a run, compared with the program's.
struct Checked<'a, T> {
    tensors: &'a mut T,
    all: &'a [Step],
}

impl<T: Tensors> Checked<'_, T> {
    fn read(&mut self, tensor: &TensorIr) -> Result<FlexTensor, T::Error> {
        let given = self.tensors.read(tensor);
        Mismatch::check(tensor, &given).map_err(|mismatch| self.named(mismatch, tensor))?;
        Ok(given)
    }

    /// The running sum of a kept tensor, which must have the elements of `alike`.
    fn sum(&mut self, kept: TensorId, alike: &TensorIr) -> Result<Option<FlexTensor>, T::Error> {
        let Some(sum) = self.tensors.sum(kept) else { return Ok(None) };
        let shape = match sum.layout().num_elements() == alike.shape.num_elements() {
            true => sum.layout().shape().clone(),
            false => alike.shape.clone(),
        };
        let expected = TensorIr { id: kept, shape, ..alike.clone() };
        Mismatch::check(&expected, &sum)?;
        Ok(Some(sum))
    }

    /// Adds the name of the operation that made the tensor, if the interpreter ran it.
    #[cold]
    fn named(&self, mismatch: Mismatch, tensor: &TensorIr) -> T::Error {
        let mut makers = self.all.iter().filter(|step| step.outputs.iter().any(|output| output.id == tensor.id));
        let operation = makers.find_map(|step| match &step.work {
            Work::Interpret(op) => Some(operation_name(op)),
            _ => None,
        });
        Mismatch { operation, ..mismatch }.into()
    }
}

impl Step {
    /// Bytes read and written; a view costs nothing.
    fn bytes(&self) -> usize {
        match self.work {
            Work::View(_) => 0,
            _ => self.reads.iter().chain(&self.outputs).map(bytes).sum(),
        }
    }

    fn run<T: Tensors>(&self, checked: &mut Checked<'_, T>, rounded: Option<Bf16>) -> Result<(), T::Error> {
        match &self.work {
            Work::Interpret(op) => checked.tensors.interpret(op)?,
            Work::Fill(value) => {
                for output in &self.outputs {
                    checked.tensors.write(output, filled(*value, output));
                }
            }
            Work::View(how) => {
                if let ([input], [output]) = (&self.reads[..], &self.outputs[..]) {
                    let value = view(checked.read(input)?, how, output);
                    checked.tensors.write(output, value);
                }
            }
            _ => {
                let made = self.compute(checked, rounded)?;
                self.outputs.iter().zip(made).for_each(|(output, value)| checked.tensors.write(output, value));
            }
        }
        for tensor in &self.drops {
            debug_assert_eq!(tensor.status, TensorStatus::ReadWrite, "it is released");
            drop(checked.tensors.read(tensor));
        }
        Ok(())
    }

    /// Computes the outputs of the step, in order.
    fn compute<T: Tensors>(
        &self,
        checked: &mut Checked<'_, T>,
        rounded: Option<Bf16>,
    ) -> Result<Vec<FlexTensor>, T::Error> {
        let inputs: Vec<FlexTensor> = self.reads.iter().map(|read| checked.read(read)).collect::<Result<_, _>>()?;
        let output = self.outputs.first();
        // SAFETY: inputs and sums have the shapes and types of the step. The step was made of operations that fit
        // together (`read`), its parts are ranges of the output that do not overlap, and its region takes the blocks
        // (`steps::joinable`).
        Ok(unsafe {
            match (&self.work, &inputs[..], output) {
                (Work::Matmul { sum }, [lhs, rhs], Some(output)) => {
                    let sum = sum.map_or(Ok(None), |kept| checked.sum(kept, output))?;
                    vec![match sum {
                        Some(sum) => add_matmul(lhs, rhs, sum, output, rounded),
                        None => matmul(lhs, rhs, output, rounded),
                    }]
                }
                (Work::Convolve(convolution), [first, second], Some(output)) => {
                    vec![convolution.run([first, second], output, rounded)]
                }
                (Work::Place(parts), inputs, Some(output)) => vec![place(parts, inputs, output, rounded)],
                (Work::Region { region, made: None }, inputs, _) => region.run(inputs),
                (Work::Region { region, made: Some(made) }, [lhs, rhs, inputs @ ..], _) => {
                    let matmul = &region.inputs[*made].tensor;
                    // A block has room for the region's rows of one matrix.
                    region.run_blocks(*made, inputs, |place, to| multiply_one([lhs, rhs], matmul, place, to, rounded))
                }
                _ => Vec::new(),
            }
        })
    }
}

fn filled(value: f32, output: &TensorIr) -> FlexTensor {
    let elements = output.shape.num_elements();
    let mut fresh = Fresh::of(output);
    // SAFETY: there is room for all elements, and all are written.
    unsafe {
        match Half::of(output) {
            Some(half) => {
                let bits = half.bits(half.rounded(value));
                from_raw_parts_mut(fresh.as_bytes().cast(), elements).fill(MaybeUninit::new(bits));
            }
            None if is_float(output) => {
                from_raw_parts_mut(fresh.as_floats().cast(), elements).fill(MaybeUninit::new(value));
            }
            // A mask.
            None => fresh.as_bytes().write_bytes(u8::from(value != 0.0), elements),
        }
        fresh.tensor(output)
    }
}

impl Display for Compiled {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.steps.iter().try_for_each(|step| writeln!(f, "{step}"))
    }
}

impl Display for Summary {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (fused, regions, matmuls) = (self.fused, self.regions, self.matmuls);
        let of = if self.rounded { " of bf16" } else { "" };
        write!(f, "{fused} operations fused in {regions} regions, {matmuls} matmuls{of}, ")?;
        if self.convolutions > 0 {
            write!(f, "{} convolutions{of}, ", self.convolutions)?;
        }
        write!(f, "{:.1} MB moved", self.bytes as f64 / 1e6)?;
        match self.interpreted.is_empty() {
            true => Ok(()),
            false => {
                let names = self.interpreted.iter().map(|(name, count)| format!("{count} {name}"));
                write!(f, ", interpreted: {}", names.collect::<Vec<_>>().join(", "))
            }
        }
    }
}
