//! Lowers the nodes of a group to a region.
//!
//! 1. Each node becomes an instruction that writes a buffer. A view within the region, or a cast to `f32`, uses the
//!    buffer of its input.
//! 2. A result that is read outside becomes an output; several tensors with the same values share one.
//! 3. A half-precision result is rounded in its buffer if the region reads it, unless its numbers are exact already;
//!    otherwise only as it is stored.
//! 4. At the end, buffers get their places in a tile ([`slots`](super::slots)).

use super::slots::{BufferKind, assigned};
use super::{Input, Kind, Output, Region};
use crate::clean::widens;
use crate::fuse::{Group, is_within, sums_rows};
use crate::graph::{Graph, Map, Node, Op, Operand, Reduction, is_mask, is_number};
use crate::half::Half;
use crate::tile::{Argument, Instruction, Work};
use burn::backend::ir::{TensorId, TensorIr};
use std::collections::{HashMap, HashSet};

/// The region of a group. `outside` are tensors that other groups read, or that are kept.
pub(crate) fn lower(graph: &Graph, group: &Group, outside: &HashSet<TensorId>) -> Option<Region> {
    let (rows, columns) = group.extent?;
    let nodes: Vec<&Node> = group.nodes.iter().map(|&place| &graph.nodes[place]).collect();
    let (handed, read) = handed(&nodes, outside);
    let mut lowering = Lowering {
        columns,
        handed,
        read,
        values: HashMap::new(),
        inputs: Vec::new(),
        outputs: Vec::new(),
        code: Vec::new(),
        buffers: Vec::new(),
        whole_rows: false,
    };
    nodes.iter().for_each(|node| lowering.node(node));
    let Lowering { inputs, mut outputs, mut code, buffers, whole_rows, .. } = lowering;
    let (wide_slots, row_slots) = assigned(&mut code, &mut outputs, &buffers, inputs.len());
    Some(Region { rows, columns, inputs, outputs, code, wide_slots, row_slots, whole_rows, nodes: nodes.len() })
}

/// Returns true if every result of a node is a number that it reads, or its negative, in the same type, or 0: no
/// rounding is needed.
fn is_exact(node: &Node) -> bool {
    let chooses = match node.op {
        Op::Map(map) => matches!(map, Map::Copy | Map::Neg | Map::Abs | Map::Relu | Map::ReluBackward | Map::Select),
        Op::Reduce(reduction, _) => reduction != Reduction::Sum,
        _ => false,
    };
    chooses && node.reads().filter(|read| is_number(read)).all(|read| read.dtype == node.output().dtype)
}

/// For each tensor that a node computes: the tensors with its values (itself, views of it, widened ones) that are read
/// outside. Then the tensors whose values the region reads itself.
fn handed(nodes: &[&Node], outside: &HashSet<TensorId>) -> (HashMap<TensorId, Vec<TensorIr>>, HashSet<TensorId>) {
    let mut root: HashMap<TensorId, TensorId> = HashMap::new();
    let mut handed: HashMap<TensorId, Vec<TensorIr>> = HashMap::new();
    let mut read = HashSet::new();
    for node in nodes {
        let output = node.output();
        let root_of = |input: &TensorIr| root.get(&input.id).copied().unwrap_or(input.id);
        if !is_within(node) {
            read.extend(node.reads().map(root_of));
        }
        let made = |input: &&TensorIr| is_within(node) || widens(node).is_some() && root.contains_key(&input.id);
        let of = node.inputs.first().and_then(Operand::tensor).filter(made).map_or(output.id, root_of);
        root.insert(output.id, of);
        if outside.contains(&output.id) {
            handed.entry(of).or_default().push(output.clone());
        }
    }
    (handed, read)
}

struct Lowering {
    columns: usize,
    handed: HashMap<TensorId, Vec<TensorIr>>,
    read: HashSet<TensorId>,
    values: HashMap<TensorId, Argument>,
    inputs: Vec<Input>,
    outputs: Vec<Output>,
    code: Vec<Instruction>,
    buffers: Vec<BufferKind>,
    whole_rows: bool,
}

impl Lowering {
    fn node(&mut self, node: &Node) {
        let output = node.output();
        let half = Half::of(output);
        let rounds = half.filter(|_| !is_exact(node) && self.read.contains(&output.id));
        match &node.op {
            // Tiles hold widened numbers.
            Op::Map(_) if widens(node).is_some() && !self.handed.contains_key(&output.id) => {
                let value = self.argument(&node.inputs[0], output);
                self.values.insert(output.id, value);
            }
            // A cast to half precision that is only stored.
            Op::Map(Map::Copy)
                if half.is_some() && !self.read.contains(&output.id) && node.inputs[0].tensor().is_some() =>
            {
                let value = self.argument(&node.inputs[0], output);
                self.values.insert(output.id, value);
                let tensors = self.handed.remove(&output.id).unwrap_or_default();
                self.stored(tensors, value);
            }
            Op::Map(map) => {
                let mut arguments = [Argument::None; 3];
                for (argument, input) in arguments.iter_mut().zip(&node.inputs) {
                    *argument = self.argument(input, output);
                }
                let wide = self.columns == 1 || arguments.iter().any(|argument| matches!(argument, Argument::Wide(_)));
                self.made(output, Work::Map(*map), wide, arguments, rounds);
            }
            Op::Reduce(..) if sums_rows(node) => self.sum(node),
            Op::Reduce(reduction, _) => {
                let Some(input) = node.inputs[0].tensor() else { return };
                let from = self.argument(&node.inputs[0], input);
                // With one column, a row equals its sum.
                if input.shape.last() == Some(&1) {
                    let wide = self.columns == 1;
                    let arguments = [from, Argument::None, Argument::None];
                    return self.made(output, Work::Map(Map::Copy), wide, arguments, rounds);
                }
                self.whole_rows = true;
                let from = self.widened(from);
                let arguments = [from, Argument::None, Argument::None];
                self.made(output, Work::Reduce(*reduction), false, arguments, rounds);
            }
            _ => {
                let value = self.argument(&node.inputs[0], output);
                self.values.insert(output.id, value);
            }
        }
    }

    /// Returns true if a tensor of the region has a value for each element, not for each row.
    fn is_wide(&self, tensor: &TensorIr) -> bool {
        self.columns == 1 || tensor.shape.last() == Some(&self.columns)
    }

    /// The buffer for an instruction's result. It is an output if the result is read outside.
    fn made(&mut self, tensor: &TensorIr, work: Work, wide: bool, arguments: [Argument; 3], rounds: Option<Half>) {
        let handed = self.handed.remove(&tensor.id).unwrap_or_default();
        let (others, floats): (Vec<TensorIr>, Vec<TensorIr>) =
            handed.into_iter().partition(|tensor| is_mask(tensor) || Half::of(tensor).is_some());
        let (alike, repeated): (Vec<TensorIr>, Vec<TensorIr>) =
            floats.into_iter().partition(|tensor| self.is_wide(tensor) == wide);
        let to = match alike.is_empty() {
            true => self.buffer(BufferKind::Slot { wide }),
            false => self.output(alike, Kind::Values { wide }),
        };
        self.code.push(Instruction { work, wide, to, arguments, rounds });
        let value = if wide { Argument::Wide(to) } else { Argument::Row(to) };
        self.values.insert(tensor.id, value);
        if !repeated.is_empty() {
            let to = self.output(repeated, Kind::Values { wide: true });
            self.copy(value, to);
        }
        self.stored(others, value);
    }

    /// Outputs that have another type than the tile: masks, and half precision. A result with one value for each row of
    /// a wide tensor is passed on as it is, stored for each element, or both.
    fn stored(&mut self, tensors: Vec<TensorIr>, value: Argument) {
        for (tensors, from) in self.by_width(tensors, value) {
            let half = tensors.first().and_then(Half::of);
            self.output(tensors, half.map_or(Kind::Mask { from }, |half| Kind::Half { from, half }));
        }
    }

    /// Splits tensors of one value into wide ones and others, each with the buffer from which they are stored.
    fn by_width(&mut self, tensors: Vec<TensorIr>, value: Argument) -> Vec<(Vec<TensorIr>, Argument)> {
        let (wide, rows): (Vec<TensorIr>, Vec<TensorIr>) = tensors.into_iter().partition(|tensor| self.is_wide(tensor));
        let mut found = Vec::new();
        if !rows.is_empty() {
            found.push((rows, value));
        }
        if !wide.is_empty() {
            found.push((wide, self.widened(value)));
        }
        found
    }

    fn sum(&mut self, node: &Node) {
        let (Op::Reduce(_, summed), Some(input)) = (&node.op, node.inputs[0].tensor()) else { return };
        let from = self.argument(&node.inputs[0], input);
        let wide = self.is_wide(input);
        let from = if wide { self.widened(from) } else { from };
        let last = input.shape.num_dims() - 1;
        let dims = (0..last).map(|dim| (input.shape[dim], !summed.contains(&dim))).collect();
        let columns = if wide { self.columns } else { 1 };
        let tensors = self.handed.remove(&node.output().id).unwrap_or_default();
        self.output(tensors, Kind::Sum { from, columns, dims });
    }

    /// The value for each element.
    fn widened(&mut self, value: Argument) -> Argument {
        if let Argument::Wide(_) = value {
            return value;
        }
        let to = self.buffer(BufferKind::Slot { wide: true });
        self.copy(value, to);
        Argument::Wide(to)
    }

    fn copy(&mut self, value: Argument, to: usize) {
        let arguments = [value, Argument::None, Argument::None];
        self.code.push(Instruction { work: Work::Map(Map::Copy), wide: true, to, arguments, rounds: None });
    }

    fn buffer(&mut self, kind: BufferKind) -> usize {
        self.buffers.push(kind);
        self.buffers.len() - 1
    }

    fn output(&mut self, tensors: Vec<TensorIr>, kind: Kind) -> usize {
        self.outputs.push(Output { tensors, kind });
        self.buffer(BufferKind::Output(self.outputs.len() - 1))
    }

    /// The argument for an operand of a node whose result has the shape of `like`.
    fn argument(&mut self, input: &Operand, like: &TensorIr) -> Argument {
        let tensor = match input {
            Operand::Scalar(value) => return Argument::Scalar(*value),
            Operand::Tensor(tensor) => tensor,
        };
        if let Some(value) = self.values.get(&tensor.id) {
            return *value;
        }
        let over = like.shape.split_last().map(|(_, rows)| rows.to_vec()).unwrap_or_default();
        let wide = self.is_wide(tensor);
        let known = self.inputs.iter().position(|input| input.tensor.id == tensor.id && input.over == over);
        let place = known.unwrap_or_else(|| {
            self.inputs.push(Input { tensor: tensor.clone(), over, wide });
            self.inputs.len() - 1
        });
        let kind = BufferKind::Input(place);
        let known = self.buffers.iter().position(|buffer| *buffer == kind);
        let buffer = known.unwrap_or_else(|| self.buffer(kind));
        if wide { Argument::Wide(buffer) } else { Argument::Row(buffer) }
    }
}
