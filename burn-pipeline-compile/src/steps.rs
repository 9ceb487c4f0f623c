//! Turns a graph into ordered steps, each of which knows the tensors that it releases.
//!
//! Guarantees: the last step that reads a tensor releases it, and storage without owners is free at once. The program
//! leaves the same tensors as its operations.

use crate::convolution::Convolution;
use crate::fuse::{Group, fuse};
use crate::graph::{Graph, Node, Op, Part, View, is_float, places, text};
use crate::matmul_kernel::is_addable;
use crate::region::{Region, lower};
use burn::backend::ir::{IrVisitorMut, OperationIr, TensorId, TensorIr, TensorStatus};
use std::collections::{HashMap, HashSet};
use std::fmt::{Display, Formatter, Result};

/// The work of a step.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Work {
    Interpret(Box<OperationIr>),
    Fill(f32),
    View(View),
    /// A matmul. `sum` is the kept tensor to whose running sum it is added, if the caller has one
    /// ([`Tensors::sum`](crate::Tensors::sum)).
    Matmul {
        sum: Option<TensorId>,
    },
    Convolve(Box<Convolution>),
    Place(Vec<Part>),
    /// A region. If it alone reads a batch of matmuls, its input at index `made`, it runs right after each matrix: the
    /// step then reads the operands of the matmul, and after them the other inputs.
    Region {
        region: Box<Region>,
        made: Option<usize>,
    },
}

/// One step of a compiled program.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Step {
    pub(crate) work: Work,
    /// Its inputs, in order; status `ReadWrite` for those that it releases.
    pub(crate) reads: Vec<TensorIr>,
    pub(crate) outputs: Vec<TensorIr>,
    /// Tensors released after the step.
    pub(crate) drops: Vec<TensorIr>,
}

/// The steps of a graph. `fed` are the tensors from outside that its operations read.
pub(crate) fn steps(graph: &Graph, fed: &[TensorIr]) -> Vec<Step> {
    let groups = fuse(graph);
    let outside = outside(graph, &groups);
    let mut steps: Vec<Step> = groups.iter().flat_map(|group| group_steps(graph, group, &outside)).collect();
    join_matmuls(&mut steps, &graph.kept);
    find_sums(&mut steps, &graph.kept);
    release(&mut steps, fed, &graph.kept);
    steps
}

/// Finds matmuls of two matrices whose only reader is a kept tensor: gradients of weights.
fn find_sums(steps: &mut [Step], kept: &HashSet<TensorId>) {
    for place in 0..steps.len() {
        let Step { work: Work::Matmul { .. }, reads, outputs, .. } = &steps[place] else { continue };
        let (lhs, mut end) = (&reads[0].shape, outputs[0].clone());
        // A gradient in half precision is rounded before it is added.
        if !is_float(&end) || end.shape.num_dims() != 2 || !is_addable([end.shape[0], end.shape[1], lhs[1]]) {
            continue;
        }
        let found = loop {
            let mut readers = steps.iter().filter(|step| step.reads.iter().any(|read| read.id == end.id));
            match (kept.contains(&end.id), readers.next(), readers.next()) {
                (true, None, None) => break Some(end.id),
                (false, Some(Step { work: Work::View(View::Reshape), outputs, .. }), None) => end = outputs[0].clone(),
                _ => break None,
            }
        };
        steps[place].work = Work::Matmul { sum: found };
    }
}

/// Joins batches of matmuls with the only region that reads them, so that scores are never written whole.
fn join_matmuls(steps: &mut Vec<Step>, kept: &HashSet<TensorId>) {
    let mut place = 0;
    while place < steps.len() {
        if let Some((matmul, input)) = joinable(steps, place, kept) {
            let matmul = steps.remove(matmul);
            place -= 1;
            let Step { work, reads, .. } = &mut steps[place];
            if let Work::Region { made, .. } = work {
                *made = Some(input);
                reads.remove(input);
                reads.splice(0..0, matmul.reads);
            }
        }
        place += 1;
    }
}

/// The step of a batch of matmuls that only the region at this index reads, and the batch's index among the region's
/// inputs.
fn joinable(steps: &[Step], place: usize, kept: &HashSet<TensorId>) -> Option<(usize, usize)> {
    let Work::Region { region, made: None } = &steps[place].work else { return None };
    // A matmul stays before a custom operation, whose time it may hide.
    let earlier = steps[..place].iter().enumerate().rev().take_while(|(_, step)| !is_custom(step));
    earlier.filter(|(_, step)| matches!(step.work, Work::Matmul { .. })).find_map(|(matmul, step)| {
        let output = &step.outputs[0];
        let made = region.inputs.iter().position(|input| input.tensor.id == output.id)?;
        let reads = |step: &Step| step.reads.iter().filter(|read| read.id == output.id).count();
        let alone = steps.iter().map(reads).sum::<usize>() == 1 && !kept.contains(&output.id);
        (alone && region.takes_blocks(made)).then_some((matmul, made))
    })
}

fn is_custom(step: &Step) -> bool {
    matches!(&step.work, Work::Interpret(op) if matches!(op.as_ref(), OperationIr::Custom(_)))
}

/// Tensors that are kept, or read by a group other than the one that makes them.
fn outside(graph: &Graph, groups: &[Group]) -> HashSet<TensorId> {
    let mut outside = graph.kept.clone();
    for group in groups {
        let nodes = || group.nodes.iter().map(|&place| &graph.nodes[place]);
        let made: HashSet<TensorId> = nodes().flat_map(|node| &node.outputs).map(|output| output.id).collect();
        outside.extend(nodes().flat_map(Node::reads).map(|read| read.id).filter(|id| !made.contains(id)));
    }
    outside
}

fn group_steps(graph: &Graph, group: &Group, outside: &HashSet<TensorId>) -> Vec<Step> {
    if let Some(region) = lower(graph, group, outside) {
        let reads = region.inputs.iter().map(|input| input.tensor.clone()).collect();
        let outputs = region.outputs.iter().flat_map(|output| output.tensors.clone()).collect();
        let work = Work::Region { region: Box::new(region), made: None };
        return vec![Step { work, reads, outputs, drops: Vec::new() }];
    }
    group.nodes.iter().map(|&place| alone(&graph.nodes[place])).collect()
}

/// The step of a node outside regions.
fn alone(node: &Node) -> Step {
    let work = match &node.op {
        Op::Interpret(op) => Work::Interpret(op.clone()),
        Op::Fill(value) => Work::Fill(*value),
        Op::View(view) => Work::View(view.clone()),
        Op::Matmul => Work::Matmul { sum: None },
        Op::Convolve(convolution) => Work::Convolve(convolution.clone()),
        Op::Place(parts) => Work::Place(parts.clone()),
        // Without elements there is nothing to compute, or only empty sums.
        Op::Map(_) | Op::Reduce(..) => Work::Fill(0.0),
    };
    let reads = if matches!(work, Work::Fill(_)) { Vec::new() } else { node.reads().cloned().collect() };
    Step { work, reads, outputs: node.outputs.clone(), drops: Vec::new() }
}

/// Finds the step that releases each tensor.
fn release(steps: &mut Vec<Step>, fed: &[TensorIr], kept: &HashSet<TensorId>) {
    let mut last: HashMap<TensorId, usize> = HashMap::new();
    for (place, step) in steps.iter().enumerate() {
        last.extend(step.reads.iter().map(|read| (read.id, place)));
    }
    for (place, step) in steps.iter_mut().enumerate() {
        let mut counts: HashMap<TensorId, usize> = HashMap::new();
        step.reads.iter().for_each(|read| *counts.entry(read.id).or_default() += 1);
        for read in &mut step.reads {
            let ends = last.get(&read.id) == Some(&place) && !kept.contains(&read.id);
            let alone = counts.get(&read.id) == Some(&1);
            read.status = if ends && alone { TensorStatus::ReadWrite } else { TensorStatus::ReadOnly };
            if ends && !alone && !step.drops.iter().any(|drop| drop.id == read.id) {
                step.drops.push(released(read));
            }
        }
        let unread = step.outputs.iter().filter(|output| !last.contains_key(&output.id) && !kept.contains(&output.id));
        step.drops.extend(unread.map(released));
        if let Work::Interpret(op) = &mut step.work {
            op.visit_mut(&mut Marked { reads: &step.reads, outputs: &step.outputs });
        }
    }
    // Fed tensors that no step reads are released first.
    let unread = fed.iter().filter(|tensor| !last.contains_key(&tensor.id) && !kept.contains(&tensor.id));
    let drops: Vec<TensorIr> = unread.map(released).collect();
    match steps.first_mut() {
        Some(first) => first.drops.extend(drops),
        None if drops.is_empty() => {}
        None => {
            let nothing = Work::View(View::Reshape);
            steps.push(Step { work: nothing, reads: Vec::new(), outputs: Vec::new(), drops });
        }
    }
}

fn released(tensor: &TensorIr) -> TensorIr {
    TensorIr { status: TensorStatus::ReadWrite, ..tensor.clone() }
}

/// Sets the status of an operation's tensors to that of its step's tensors.
struct Marked<'a> {
    reads: &'a [TensorIr],
    outputs: &'a [TensorIr],
}

impl IrVisitorMut for Marked<'_> {
    fn visit_tensor_mut(&mut self, tensor: &mut TensorIr) {
        let read = self.reads.iter().find(|read| read.id == tensor.id);
        let made = self.outputs.iter().any(|output| output.id == tensor.id);
        tensor.status = match read {
            Some(read) if !made => read.status,
            _ => TensorStatus::NotInit,
        };
    }
}

impl Display for Step {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let (outputs, reads) = (list(&self.outputs), list(&self.reads));
        match &self.work {
            Work::Interpret(op) => {
                let inputs = self.reads.iter().cloned().map(crate::graph::Operand::Tensor).collect();
                let node = Node { op: Op::Interpret(op.clone()), inputs, outputs: self.outputs.clone() };
                write!(f, "{node}")
            }
            Work::Fill(value) => write!(f, "{outputs} = fill {value}"),
            Work::View(view) => write!(f, "{outputs} = {view:?}({reads})"),
            Work::Matmul { sum: None } => write!(f, "{outputs} = Matmul({reads})"),
            Work::Matmul { sum: Some(sum) } => write!(f, "{outputs} = Matmul({reads}), added to %{}", sum.value()),
            Work::Convolve(convolution) => write!(f, "{outputs} = {convolution}({reads})"),
            Work::Place(parts) => write!(f, "{outputs} = {}({reads})", places(parts)),
            Work::Region { region, made: None } => write!(f, "{region}"),
            Work::Region { region, made: Some(_) } => {
                write!(f, "{region} behind Matmul({}, {})", text(&self.reads[0]), text(&self.reads[1]))
            }
        }
    }
}

fn list(tensors: &[TensorIr]) -> String {
    tensors.iter().map(text).collect::<Vec<_>>().join(", ")
}
