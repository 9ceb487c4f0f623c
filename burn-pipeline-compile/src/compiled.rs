//! Compiled programs.

use crate::clean::clean;
use crate::graph::is_float;
use crate::multiply::Bf16;
use crate::place::place;
use crate::product::{add_product, multiply_one, product};
use crate::read::read;
use crate::region::Region;
use crate::steps::{Step, Work, steps};
use crate::storage::Fresh;
use crate::view::view;
use burn::backend::flex::FlexTensor;
use burn::backend::ir::{OperationIr, TensorId, TensorIr, TensorStatus};
use std::collections::{BTreeMap, HashSet};
use std::fmt::{Display, Formatter, Result};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::slice::from_raw_parts_mut;

/// A program compiled for processors; its text has one step a line.
#[derive(Clone, PartialEq, Debug)]
pub struct Compiled {
    steps: Vec<Step>,
    /// Are operands of products rounded?
    rounded: Option<Bf16>,
}

/// The tensors of a run, and the interpreter for operations that are not compiled.
pub trait Tensors {
    /// Gives a tensor; it is released if its status is `ReadWrite`.
    fn read(&mut self, tensor: &TensorIr) -> FlexTensor;

    /// Takes a tensor that a step made.
    fn write(&mut self, tensor: &TensorIr, value: FlexTensor);

    /// The running sum of a kept tensor, which a product would become alone: then the product is added to it, and the tensor that is
    /// written is the sum. `None` where there is none, or where it is not wanted.
    fn sum(&mut self, _kept: TensorId) -> Option<FlexTensor> {
        None
    }

    /// Runs an operation, reading and releasing as its tensors' status says.
    fn interpret(&mut self, operation: &OperationIr);
}

/// What became of a program's operations.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Summary {
    /// Regions of operations that run tile by tile.
    pub regions: usize,
    /// The operations in them.
    pub fused: usize,
    /// Products of matrices.
    pub products: usize,
    /// Are their operands rounded to `bf16`?
    pub rounded: bool,
    /// Convolutions, and gradients of their inputs and weights.
    pub convolutions: usize,
    /// Names of operations that the interpreter runs, and how many there are of each.
    pub interpreted: BTreeMap<String, usize>,
    /// Bytes that the steps read and write, those that stay within a step left out.
    pub bytes: usize,
}

impl Compiled {
    /// Compiles a program: operations in order, whose tensors' status says where they are released. `kept` are the tensors that
    /// are there after it: those that were there before and are not released, and those that it made for later. Where `rounded`
    /// says that the processor can, operands of products are rounded to `bf16`.
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

    /// Is there nothing to do?
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Runs some steps.
    pub fn run(&self, steps: Range<usize>, tensors: &mut impl Tensors) {
        self.steps[steps].iter().for_each(|step| step.run(tensors, self.rounded));
    }

    /// What became of the operations.
    pub fn summary(&self) -> Summary {
        let mut summary = Summary { rounded: self.rounded.is_some(), ..Summary::default() };
        for step in &self.steps {
            summary.bytes += step.bytes();
            match &step.work {
                Work::Region(region) => {
                    summary.regions += 1;
                    summary.fused += region.nodes;
                }
                Work::Blocks { region, .. } => {
                    summary.regions += 1;
                    summary.fused += region.nodes;
                    summary.products += 1;
                }
                Work::Matmul { .. } => summary.products += 1,
                Work::Convolve(_) => summary.convolutions += 1,
                Work::Place(parts) => summary.products += parts.iter().filter(|part| part.product).count(),
                Work::Interpret(op) => *summary.interpreted.entry(crate::graph::name(op)).or_default() += 1,
                Work::Fill(_) | Work::View(_) => {}
            }
        }
        summary
    }
}

impl Step {
    /// Bytes read and written; a view costs nothing.
    fn bytes(&self) -> usize {
        let size = |tensor: &TensorIr| tensor.shape.num_elements() * tensor.dtype.size();
        match self.work {
            Work::View(_) => 0,
            _ => self.reads.iter().chain(&self.outputs).map(size).sum(),
        }
    }

    fn run(&self, tensors: &mut impl Tensors, rounded: Option<Bf16>) {
        match &self.work {
            Work::Interpret(op) => tensors.interpret(op),
            Work::Fill(value) => {
                for output in &self.outputs {
                    tensors.write(output, filled(*value, output));
                }
            }
            Work::View(how) => {
                if let ([input], [output]) = (&self.reads[..], &self.outputs[..]) {
                    let value = view(tensors.read(input), how, output);
                    tensors.write(output, value);
                }
            }
            Work::Matmul { sum } => {
                let [lhs, rhs] = [0, 1].map(|place| tensors.read(&self.reads[place]));
                let output = &self.outputs[0];
                let value = match sum.and_then(|kept| tensors.sum(kept)) {
                    Some(sum) => add_product(&lhs, &rhs, sum, output, rounded),
                    None => product(&lhs, &rhs, output, rounded).1,
                };
                tensors.write(output, value);
            }
            Work::Convolve(convolution) => {
                let [first, second] = [0, 1].map(|place| tensors.read(&self.reads[place]));
                let output = &self.outputs[0];
                let value = convolution.run([&first, &second], output, rounded);
                drop((first, second));
                tensors.write(output, value);
            }
            Work::Place(parts) => {
                let inputs: Vec<FlexTensor> = self.reads.iter().map(|input| tensors.read(input)).collect();
                let output = &self.outputs[0];
                let value = place(parts, &inputs, output, rounded);
                drop(inputs);
                tensors.write(output, value);
            }
            Work::Region(region) => {
                let inputs: Vec<FlexTensor> = self.reads.iter().map(|input| tensors.read(input)).collect();
                let given = region.run(&inputs);
                drop(inputs);
                self.give(given, tensors);
            }
            Work::Blocks { region, made } => {
                let [lhs, rhs] = [0, 1].map(|place| tensors.read(&self.reads[place]));
                let inputs: Vec<FlexTensor> = self.reads[2..].iter().map(|input| tensors.read(input)).collect();
                let given = run_blocks(region, *made, [&lhs, &rhs], &inputs, rounded);
                drop((lhs, rhs, inputs));
                self.give(given, tensors);
            }
        }
        for tensor in &self.drops {
            debug_assert_eq!(tensor.status, TensorStatus::ReadWrite, "it is released");
            drop(tensors.read(tensor));
        }
    }

    /// Hands a region's results over.
    fn give(&self, given: Vec<(TensorId, FlexTensor)>, tensors: &mut impl Tensors) {
        for (id, value) in given {
            if let Some(output) = self.outputs.iter().find(|output| output.id == id) {
                tensors.write(output, value);
            }
        }
    }
}

/// Runs a region behind a batch of products, matrix by matrix.
fn run_blocks(
    region: &Region,
    made: usize,
    operands: [&FlexTensor; 2],
    inputs: &[FlexTensor],
    rounded: Option<Bf16>,
) -> Vec<(TensorId, FlexTensor)> {
    let shape = &region.inputs[made].tensor.shape;
    let count = shape[..shape.num_dims() - 2].iter().product();
    // SAFETY: there is room for a block of the region's rows, which is a matrix.
    region.run_blocks((made, count), inputs, |place, to| unsafe { multiply_one(operands, shape, place, to, rounded) })
}

fn filled(value: f32, output: &TensorIr) -> FlexTensor {
    let elements = output.shape.num_elements();
    let mut fresh = Fresh::bytes(elements * output.dtype.size());
    // SAFETY: there is room for each element, all of which are written.
    let mut given = unsafe {
        match is_float(output) {
            true => from_raw_parts_mut(fresh.as_floats().cast(), elements).fill(MaybeUninit::new(value)),
            // A mask.
            false => fresh.as_bytes().write_bytes(u8::from(value != 0.0), elements),
        }
        fresh.tensors(std::slice::from_ref(output))
    };
    given.swap_remove(0).1
}

impl Display for Compiled {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        self.steps.iter().try_for_each(|step| writeln!(f, "{step}"))
    }
}

impl Display for Summary {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let (fused, regions, products) = (self.fused, self.regions, self.products);
        let of = if self.rounded { " of bf16" } else { "" };
        write!(f, "{fused} operations fused in {regions} regions, {products} products{of}, ")?;
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
