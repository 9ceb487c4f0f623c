//! Groups nodes that run together, as one region.
//!
//! Guarantees: regions can run one after the other, each after the nodes that it reads from. All tensors of a region
//! have its number of rows, and its number of columns or one value per row.
//!
//! 1. In program order, a node joins the regions that it reads from, if rows and columns fit. A function that reads
//!    from two regions merges them.
//! 2. A join is refused if a tensor would leave a region, go through another node, and come back, since no order
//!    could run that. So the dependencies of each group of nodes are tracked.
//! 3. Reshapes that keep rows and columns, and row values repeated along rows, join the region of their input. All
//!    other views stay outside, and cost nothing.
//! 4. Custom operations keep the program's order among themselves. One may start an exchange with other ranks and a
//!    later one wait for it, with operations between them that hide its time. So the inputs of a custom operation run
//!    as early as it does, and operations before it that do not need it are not moved behind it: a node that needs a
//!    custom operation does not join a region from which that operation reads.
//! 5. Random draws keep the program's order among themselves: they take the numbers of one generator.
//!
//! XLA's loop fusion and PyTorch's Inductor work in a similar way; the tiles of whole rows follow Triton's softmax
//! tutorial.

use crate::graph::{Graph, Node, Op, View, rows_and_columns};
use crate::needs::Needs;
use burn::backend::ir::TensorId;
use std::collections::{HashMap, HashSet};

/// Nodes that run together; most groups have one node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Group {
    /// Indices of its nodes in the graph, in order.
    pub(crate) nodes: Vec<usize>,
    /// Rows and columns of a region; `None` for a node outside regions.
    pub(crate) extent: Option<(usize, usize)>,
}

/// Groups in an order in which they can run.
pub(crate) fn fuse(graph: &Graph) -> Vec<Group> {
    let needs = Needs::new(graph.nodes.len());
    let mut groups = Groups { all: Vec::new(), of: HashMap::new(), needs, custom: Vec::new(), drawn: None };
    let makers = graph.makers();
    for (place, node) in graph.nodes.iter().enumerate() {
        groups.add(graph, &makers, place, node);
    }
    groups.ordered()
}

/// The rows and columns that a node runs over, if it can be part of a region.
fn extent(node: &Node) -> Option<(usize, usize)> {
    let over = match &node.op {
        Op::Map(_) => node.output(),
        Op::Reduce(..) => node.inputs[0].tensor()?,
        _ => return None,
    };
    let (rows, columns) = rows_and_columns(over);
    (rows * columns > 0).then_some((rows, columns))
}

/// Returns true if a view keeps rows and columns, or repeats one value per row.
pub(crate) fn is_within(node: &Node) -> bool {
    let Op::View(_) = node.op else { return false };
    let Some(input) = node.inputs.first().and_then(|input| input.tensor()) else { return false };
    let ((rows, columns), (out_rows, out_columns)) = (rows_and_columns(input), rows_and_columns(node.output()));
    match &node.op {
        Op::View(View::Reshape) => columns == out_columns && rows * columns > 0,
        Op::View(View::Expand) => rows == out_rows && columns == 1 && out_columns > 0 && rows > 0,
        _ => false,
    }
}

/// Returns true if it is a sum along dimensions other than the last.
pub(crate) fn sums_rows(node: &Node) -> bool {
    let Op::Reduce(_, dims) = &node.op else { return false };
    node.inputs[0].tensor().is_some_and(|tensor| dims.iter().all(|&dim| dim + 1 < tensor.shape.num_dims()))
}

struct Groups {
    /// All groups; a group that was joined to another one is empty.
    all: Vec<Group>,
    /// The group of each node.
    of: HashMap<usize, usize>,
    /// All groups that a group depends on, directly or indirectly.
    needs: Needs,
    /// The custom operations so far.
    custom: Vec<usize>,
    /// The last random draw so far.
    drawn: Option<usize>,
}

impl Groups {
    fn add(&mut self, graph: &Graph, makers: &HashMap<TensorId, usize>, place: usize, node: &Node) {
        let mut read: Vec<usize> = node.reads().filter_map(|t| self.of.get(makers.get(&t.id)?).copied()).collect();
        // Unknown operations may exchange tensors with other ranks, and all ranks must run them in one order.
        if node.is_custom() {
            read.extend(self.custom.last().and_then(|before| self.of.get(before)));
            self.custom.push(place);
        }
        if node.draws() {
            read.extend(self.drawn.replace(place).and_then(|before| self.of.get(&before)));
        }
        read.sort_unstable();
        read.dedup();
        let mine = self.all.len();
        let extent = extent(node);
        self.all.push(Group { nodes: vec![place], extent });
        self.of.insert(place, mine);
        for &group in &read {
            self.needs.insert(mine, group);
            self.needs.extend(mine, group);
        }
        if extent.is_none() && !is_within(node) {
            return;
        }
        for group in read {
            // The group of an input may have been joined to another group meanwhile.
            if !self.all[group].nodes.is_empty() {
                self.join(graph, group, self.of[&place]);
            }
        }
    }

    /// Joins two groups, if their rows and columns fit and no third group depends on one and is needed by the other.
    fn join(&mut self, graph: &Graph, one: usize, other: usize) {
        if one == other {
            return;
        }
        let Some(extent) = self.joint_extent(graph, one, other) else { return };
        let apart = self.needs.stands_between(one, other) || self.is_summed_between(graph, one, other);
        if apart || self.delays(one, other) || self.delays(other, one) {
            return;
        }
        let moved = std::mem::take(&mut self.all[other].nodes);
        self.of.extend(moved.iter().map(|&node| (node, one)));
        self.all[one].nodes.extend(moved);
        self.all[one].nodes.sort_unstable();
        self.all[one].extent = Some(extent);
        self.all[other].extent = None;
        self.needs.extend(one, other);
        [one, other].iter().for_each(|&group| self.needs.remove(one, group));
        for group in (0..self.all.len()).filter(|&group| group != one) {
            if self.needs.has(group, other) || self.needs.has(group, one) {
                self.needs.insert(group, one);
                self.needs.extend(group, one);
            }
            self.needs.remove(group, other);
        }
    }

    /// Returns true if joining would delay operations before a custom operation that `later` needs and `earlier` does
    /// not: those that read from `earlier` would then run after it.
    fn delays(&self, earlier: usize, later: usize) -> bool {
        let awaited = self.custom.iter().map(|&place| (place, self.of[&place]));
        let awaited = awaited.filter(|&(_, custom)| self.needs.has(later, custom) && !self.needs.has(earlier, custom));
        let before = |group: usize, place: usize| self.all[group].nodes.last().is_some_and(|&last| last < place);
        let mut delayed =
            awaited.flat_map(|(place, custom)| (0..self.all.len()).map(move |group| (group, place, custom)));
        delayed.any(|(group, place, custom)| {
            self.needs.has(group, earlier) && before(group, place) && !self.needs.has(group, custom)
        })
    }

    /// Returns true if one group reads a sum over rows of the other, which is complete only after all rows.
    fn is_summed_between(&self, graph: &Graph, one: usize, other: usize) -> bool {
        let made = |group: usize| -> HashSet<TensorId> {
            let sums = self.all[group].nodes.iter().map(|&node| &graph.nodes[node]).filter(|node| sums_rows(node));
            sums.map(|node| node.output().id).collect()
        };
        let sums: HashSet<TensorId> = made(one).union(&made(other)).copied().collect();
        let nodes = self.all[one].nodes.iter().chain(&self.all[other].nodes);
        nodes.flat_map(|&node| graph.nodes[node].reads()).any(|read| sums.contains(&read.id))
    }

    fn joint_extent(&self, graph: &Graph, one: usize, other: usize) -> Option<(usize, usize)> {
        let (first, second) = (self.all[one].extent, self.all[other].extent);
        match (first, second) {
            (Some((rows, columns)), Some((more_rows, more_columns))) => {
                let fits = rows == more_rows && (columns == more_columns || columns == 1 || more_columns == 1);
                fits.then_some((rows, columns.max(more_columns)))
            }
            // A view that can join a region, alone in its group.
            (Some((rows, columns)), None) => {
                let node = &graph.nodes[*self.all[other].nodes.first()?];
                let (out_rows, out_columns) = rows_and_columns(node.output());
                let fits =
                    is_within(node) && rows == out_rows && (out_columns == columns || columns == 1 || out_columns == 1);
                fits.then_some((rows, columns.max(out_columns)))
            }
            _ => None,
        }
    }

    /// The index in the program by which each group should run: its last node's or, with custom operations, that of
    /// the first group that needs it.
    fn due(&self) -> Vec<Option<usize>> {
        let last = |group: usize| self.all[group].nodes.last().copied();
        let needing = |on: usize| (0..self.all.len()).filter(move |&group| self.needs.has(group, on)).filter_map(last);
        let first = |group: usize| last(group).map(|own| needing(group).min().map_or(own, |first| own.min(first)));
        (0..self.all.len()).map(|group| if self.custom.is_empty() { last(group) } else { first(group) }).collect()
    }

    /// Orders the groups: each after its dependencies, the earliest in the program first.
    fn ordered(self) -> Vec<Group> {
        let due = self.due();
        let mut left: Vec<usize> = (0..self.all.len()).filter(|&group| !self.all[group].nodes.is_empty()).collect();
        let mut missing: Vec<usize> = (0..self.all.len()).map(|group| self.needs.count(group)).collect();
        let mut ordered = Vec::with_capacity(left.len());
        // Dependencies have no cycle, so one of the remaining groups can always run.
        while let Some(&next) = left
            .iter()
            .filter(|&&group| missing[group] == 0)
            .min_by_key(|&&group| (due[group], self.all[group].nodes.last()))
        {
            left.retain(|&group| group != next);
            left.iter().filter(|&&group| self.needs.has(group, next)).for_each(|&group| missing[group] -= 1);
            ordered.push(self.all[next].clone());
        }
        ordered
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{FRESH, Map, Operand, Reduction};
    use burn::backend::ir::TensorIr;
    use burn::tensor::{DType, Shape};

    fn tensor(id: u64, shape: &[usize]) -> TensorIr {
        TensorIr::uninit(TensorId::new(id), Shape::from(shape.to_vec()), DType::F32)
    }

    fn node(op: Op, inputs: &[(u64, &[usize])], output: (u64, &[usize])) -> Node {
        let inputs = inputs.iter().map(|(id, shape)| Operand::Tensor(tensor(*id, shape))).collect();
        Node::new(op, inputs, tensor(output.0, output.1))
    }

    fn groups(nodes: Vec<Node>) -> Vec<Vec<usize>> {
        let graph = Graph { nodes, kept: HashSet::new(), rounded: None, fresh: FRESH };
        fuse(&graph).into_iter().map(|group| group.nodes).collect()
    }

    #[test]
    fn a_softmax_is_one_region() {
        let (wide, row): (&[usize], &[usize]) = (&[2, 3, 5], &[2, 3, 1]);
        let nodes = vec![
            node(Op::Reduce(Reduction::Max, vec![2]), &[(0, wide)], (1, row)),
            node(Op::Map(Map::Sub), &[(0, wide), (1, row)], (2, wide)),
            node(Op::Map(Map::Exp), &[(2, wide)], (3, wide)),
            node(Op::Reduce(Reduction::Sum, vec![2]), &[(3, wide)], (4, row)),
            node(Op::Map(Map::Div), &[(3, wide), (4, row)], (5, wide)),
        ];
        assert_eq!(groups(nodes), [[0, 1, 2, 3, 4]]);
    }

    #[test]
    fn what_needs_a_product_of_the_region_is_not_part_of_it() {
        let square: &[usize] = &[4, 4];
        let nodes = vec![
            node(Op::Map(Map::Exp), &[(0, square)], (1, square)),
            node(Op::Matmul, &[(1, square), (1, square)], (2, square)),
            node(Op::Map(Map::Add), &[(1, square), (2, square)], (3, square)),
        ];
        assert_eq!(groups(nodes), [[0], [1], [2]]);
    }

    #[test]
    fn a_sum_over_rows_ends_a_region() {
        let (wide, columns): (&[usize], &[usize]) = (&[4, 4], &[1, 4]);
        let nodes = vec![
            node(Op::Map(Map::Exp), &[(0, wide)], (1, wide)),
            node(Op::Reduce(Reduction::Sum, vec![0]), &[(1, wide)], (2, columns)),
            node(Op::Map(Map::Mul), &[(1, wide), (2, columns)], (3, wide)),
        ];
        assert_eq!(groups(nodes), [vec![0, 1], vec![2]]);
    }
}
