//! Writes values into their final tensor.
//!
//! 1. Autodiff makes a slice's gradient by assigning the gradient to a slice of zeros, and adds the results of all
//!    slices. If the slices do not overlap and nothing else reads them, their sum becomes one tensor written part by
//!    part. So does a tensor to which slices are assigned one after the other, as recurrent layers collect their
//!    steps.
//! 2. A reshape that no strides can describe (of swapped dimensions) becomes a tensor of one part.
//! 3. A part that is a view (swapped dimensions or another shape) is written from the view's input.
//! 4. A part that is a matmul, which nothing else reads, is multiplied into its place.

use super::links::Links;
use super::slices::{meet, taken};
use crate::graph::{Graph, Map, Node, Op, Operand, Part, View, is_number};
use crate::view::reshaped;
use burn::backend::flex::Layout;
use burn::backend::ir::{BaseOperationIr, OperationIr, TensorIr};

pub(super) fn places(mut graph: Graph) -> Graph {
    let (makers, uses) = (graph.makers(), graph.uses());
    for at in 0..graph.nodes.len() {
        let links = Links { graph: &graph, makers: &makers, uses: &uses };
        let node = &graph.nodes[at];
        let next = match &node.op {
            Op::Interpret(op) => links.assigned(op),
            Op::Map(Map::Add) => links.joined(node),
            Op::View(View::Reshape) if !links.is_placed(node.output()) => links.copied(node),
            Op::Place(parts) => links.through(parts, &node.inputs),
            _ => None,
        };
        if let Some((parts, inputs)) = next {
            (graph.nodes[at].op, graph.nodes[at].inputs) = (Op::Place(parts), inputs);
        }
    }
    graph
}

/// Parts, and their inputs.
type Placed = (Vec<Part>, Vec<Operand>);

impl Links<'_> {
    /// Returns true if a tensor will be written into a part of another one.
    fn is_placed(&self, tensor: &TensorIr) -> bool {
        let mut readers = self.graph.nodes.iter().filter(|node| node.reads().any(|read| read.id == tensor.id));
        readers.any(|reader| match &reader.op {
            Op::Place(_) => true,
            Op::Interpret(op) => self.assigned(op).is_some(),
            _ => false,
        })
    }

    /// The parts of a slice assignment, to zeros or to other parts.
    fn assigned(&self, op: &OperationIr) -> Option<Placed> {
        let OperationIr::BaseFloat(BaseOperationIr::SliceAssign(op)) = op else { return None };
        (is_number(&op.out) && op.value.dtype == op.out.dtype && op.tensor.shape == op.out.shape).then_some(())?;
        let part = Part::of(&op.out, taken(&op.ranges, &op.out, &op.value)?);
        let (mut parts, mut inputs) = match &self.maker(&op.tensor)?.op {
            Op::Fill(value) if value.to_bits() == 0 => (Vec::new(), Vec::new()),
            Op::Place(parts) => (parts.clone(), self.own(&op.tensor)?.inputs.clone()),
            _ => return None,
        };
        parts.iter().all(|other| !overlap(other, &part)).then_some(())?;
        parts.push(part);
        inputs.push(Operand::Tensor(op.value.clone()));
        Some((parts, inputs))
    }

    /// The parts of a sum of two tensors whose parts do not overlap.
    fn joined(&self, node: &Node) -> Option<Placed> {
        let mut parts = Vec::new();
        let mut inputs = Vec::new();
        for input in &node.inputs {
            let tensor = input.tensor().filter(|tensor| tensor.shape == node.output().shape)?;
            let placed = self.own(tensor)?;
            let Op::Place(of) = &placed.op else { return None };
            parts.extend(of.iter().cloned());
            inputs.extend(placed.inputs.iter().cloned());
        }
        let distinct = |(at, part): (usize, &Part)| parts[..at].iter().all(|other| !overlap(other, part));
        parts.iter().enumerate().all(distinct).then_some((parts, inputs))
    }

    /// The part of a reshape that copies: its input is a view with swapped dimensions.
    fn copied(&self, node: &Node) -> Option<Placed> {
        let input = node.inputs[0].tensor().filter(|tensor| is_number(tensor) && tensor.shape.num_elements() > 0)?;
        let permuted = self.maker(input)?;
        let Op::View(View::Permute(dims)) = &permuted.op else { return None };
        let of = permuted.inputs[0].tensor()?;
        // Views of views may have any layout; computed tensors are contiguous.
        let in_order = self.maker(of).is_some_and(|maker| !matches!(maker.op, Op::View(_) | Op::Interpret(_)));
        let lies = Layout::contiguous(of.shape.clone()).permute(dims);
        (in_order && reshaped(&lies, &node.output().shape).is_none()).then_some(())?;
        let part = Part::of(node.output(), node.output().shape.iter().map(|&size| (0, size)).collect());
        let layout = reshaped(&part.layout, &input.shape)?;
        Some((vec![Part { layout, ..part }], node.inputs.clone()))
    }

    /// Parts written from the inputs of their views or matmuls.
    fn through(&self, parts: &[Part], inputs: &[Operand]) -> Option<Placed> {
        let mut rest = inputs.iter();
        let (mut changed, mut next, mut operands) = (false, Vec::with_capacity(parts.len()), Vec::new());
        for part in parts {
            if part.matmul {
                operands.extend(rest.by_ref().take(2).cloned());
                next.push(part.clone());
                continue;
            }
            let input = rest.next()?;
            match input.tensor().and_then(|tensor| self.behind(part, tensor)) {
                Some((part, inputs)) => {
                    changed = true;
                    next.push(part);
                    operands.extend(inputs);
                }
                None => {
                    next.push(part.clone());
                    operands.push(input.clone());
                }
            }
        }
        changed.then_some((next, operands))
    }

    fn behind(&self, part: &Part, tensor: &TensorIr) -> Option<(Part, Vec<Operand>)> {
        let of_view = |layout: Layout, maker: &Node| Some((Part { layout, ..part.clone() }, maker.inputs.clone()));
        let maker = self.maker(tensor)?;
        match &maker.op {
            Op::View(View::Reshape) => of_view(reshaped(&part.layout, &maker.inputs[0].tensor()?.shape)?, maker),
            Op::View(View::Permute(dims)) => {
                let mut back = vec![0; dims.len()];
                dims.iter().enumerate().for_each(|(to, &from)| back[from] = to);
                of_view(part.layout.permute(&back), maker)
            }
            Op::Matmul if self.own(tensor).is_some() => {
                Some((Part { matmul: true, ..part.clone() }, maker.inputs.clone()))
            }
            _ => None,
        }
    }
}

fn overlap(one: &Part, other: &Part) -> bool {
    meet(&one.range, &other.range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_beside_each_other_do_not_overlap() {
        let part = |first: usize| Part {
            range: vec![(0, 4), (first, 3)],
            layout: Layout::contiguous(burn::tensor::Shape::from(vec![4, 3])),
            matmul: false,
        };
        assert!(!overlap(&part(0), &part(3)));
        assert!(overlap(&part(0), &part(2)));
    }
}
