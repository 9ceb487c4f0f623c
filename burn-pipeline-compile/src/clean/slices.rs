//! Reads slices past assignments to other slices.
//!
//! If a slice is assigned to a tensor, autodiff makes the tensor's gradient by assigning zeros to that slice of the
//! gradient. If a recurrent layer collects its steps, the gradient of each step is a slice of such a tensor, one
//! assignment deeper for each later step, and every assignment copies the whole tensor. So:
//!
//! 1. A slice that shares no element with the assigned one is read from the tensor before the assignment.
//! 2. A slice that equals the assigned one is the assigned value.
//!
//! [`dead`](super::dead) removes assignments that nothing reads any more.

use super::replace::without;
use crate::graph::{Graph, Node, Op, Operand, View};
use burn::backend::ir::{BaseOperationIr, OperationIr, TensorId, TensorIr};
use burn::tensor::Slice;
use std::collections::HashMap;

/// The first index and the number of elements, along each dimension.
pub(super) type Range = Vec<(usize, usize)>;

pub(super) fn slices(mut graph: Graph) -> Graph {
    let makers = graph.makers();
    let mut same: HashMap<TensorId, TensorIr> = HashMap::new();
    for place in 0..graph.nodes.len() {
        match source(&graph, &makers, &graph.nodes[place]) {
            Some(Source::Before(tensor)) => graph.nodes[place].inputs = vec![Operand::Tensor(tensor)],
            Some(Source::Assigned(value)) => {
                same.insert(graph.nodes[place].output().id, value);
            }
            None => {}
        }
    }
    without(graph, |node| node.outputs.first().and_then(|output| same.get(&output.id)).cloned())
}

/// The source of a slice's elements.
enum Source {
    Before(TensorIr),
    Assigned(TensorIr),
}

/// The source of a slice, past all assignments to other slices; `None` if it already reads from there.
fn source(graph: &Graph, makers: &HashMap<TensorId, usize>, node: &Node) -> Option<Source> {
    let Op::View(View::Slice(ranges)) = &node.op else { return None };
    let mut tensor = node.inputs[0].tensor()?;
    let read = taken(ranges, tensor, node.output())?;
    let first = tensor.id;
    while let Some(maker) = makers.get(&tensor.id).map(|&place| &graph.nodes[place])
        && let Op::Interpret(op) = &maker.op
        && let OperationIr::BaseFloat(BaseOperationIr::SliceAssign(op)) = &**op
        && let [Operand::Tensor(before), Operand::Tensor(value)] = &maker.inputs[..]
        && before.shape == op.out.shape
        && let Some(assigned) = taken(&op.ranges, &op.out, value)
    {
        if assigned == read && value.dtype == node.output().dtype && value.shape == node.output().shape {
            return Some(Source::Assigned(value.clone()));
        }
        if meet(&assigned, &read) {
            break;
        }
        tensor = before;
    }
    (tensor.id != first).then(|| Source::Before(tensor.clone()))
}

/// The range of a tensor that a slice of the shape of `part` covers; `None` for steps other than 1, indices out of
/// range and parts of another shape.
pub(super) fn taken(ranges: &[Slice], of: &TensorIr, part: &TensorIr) -> Option<Range> {
    let rest = |tensor: &'_ TensorIr| tensor.shape.get(ranges.len()..).map(<[usize]>::to_vec);
    let fits = of.shape.num_dims() == part.shape.num_dims() && rest(of).is_some() && rest(of) == rest(part);
    fits.then_some(())?;
    let mut taken: Range = of.shape.iter().map(|&size| (0, size)).collect();
    for (dim, range) in ranges.iter().enumerate() {
        let size = of.shape[dim].cast_signed();
        let start = if range.start < 0 { range.start + size } else { range.start };
        let end = range.end.map_or(size, |end| if end < 0 { end + size } else { end.min(size) });
        let length = part.shape[dim];
        (range.step == 1 && start >= 0 && start + length.cast_signed() == end).then_some(())?;
        taken[dim] = (start.unsigned_abs(), length);
    }
    Some(taken)
}

/// Returns true if two ranges overlap.
pub(super) fn meet(one: &[(usize, usize)], other: &[(usize, usize)]) -> bool {
    one.iter().zip(other).all(|(one, other)| one.0 < other.0 + other.1 && other.0 < one.0 + one.1)
}
