//! Splits a recording into what the forward, the input's gradients and the weights' gradients need.
//!
//! Guarantees: an operation is in at most one slice, the first of `F`, `I`, `W` that needs it, so that nothing is
//! computed twice. Each slice keeps the recorded order, in which every operation comes after those that it reads
//! from. So running `F`, `I`, `W` in this order gives autodiff's own numbers.
//!
//! An exchange between the ranks of a group is never left out, even if this rank does not need its result: the others
//! wait for it. It is in `F`, or in `I` if it depends on a gradient that the backward is given, so its place is the
//! same on all ranks.

use super::draws::draw;
use super::recording::Recording;
use burn::backend::ir::{TensorId, TensorIr};
use burn_pipeline_compile::operation_name;
use burn_pipeline_plan::plan::{Collective, Collectives};
use std::collections::{HashMap, HashSet};

/// The indices of the operations of each program, in recorded order. An operation that nothing needs is in none,
/// unless it is an exchange.
#[derive(Debug, Default)]
pub(super) struct Slices {
    pub(super) forward: Vec<usize>,
    pub(super) input: Vec<usize>,
    pub(super) weight: Vec<usize>,
}

pub(super) fn slices(recording: &Recording) -> Slices {
    let graph = Graph::new(recording);
    let edges = &recording.edges;
    let forward = graph.needed_for(edges.outputs.iter());
    // A first stage has no input gradient to compute. Its `I` is then the backbone that the weights' gradients share
    // (the gradients of hidden states), and each weight's own matmul is left to `W`.
    let input = match edges.input_gradients.iter().flatten().count() {
        0 => graph.needed_by_several(edges.weight_gradients.iter().map(|(_, gradient)| gradient)),
        _ => graph.needed_for(edges.input_gradients.iter().flatten()),
    };
    let weight = graph.needed_for(edges.weight_gradients.iter().map(|(_, gradient)| gradient));
    let [for_exchanges, for_exchanges_of_gradients] = graph.needed_for_exchanges();
    let mut slices = Slices::default();
    for place in 0..recording.operations.len() {
        // A draw that nothing reads still advances the generator.
        if forward[place] || for_exchanges[place] || draw(&recording.operations[place]).is_some() {
            slices.forward.push(place);
        } else if input[place] || for_exchanges_of_gradients[place] {
            slices.input.push(place);
        } else if weight[place] {
            slices.weight.push(place);
        }
    }
    slices
}

impl Recording {
    /// The exchanges of `F` and `I` in the order in which they start, each with its name and inputs. `W` has none.
    pub(crate) fn exchanges(&self) -> Collectives {
        let parts = slices(self);
        let described = |place: usize| {
            let op = &self.operations[place];
            let among = self.custom.ranks_of(op)?;
            let reads = op.inputs().map(|input| format!("{:?} {:?}", input.shape.to_vec(), input.dtype));
            let what = format!("{} of {}", operation_name(op), reads.collect::<Vec<_>>().join(", "));
            Some(Collective { among, what })
        };
        let forward = parts.forward.into_iter().filter_map(described).collect();
        let input = parts.input.into_iter().filter_map(described).collect();
        Collectives { forward, input, weight: Vec::new() }
    }
}

struct Graph<'a> {
    recording: &'a Recording,
    producers: HashMap<TensorId, usize>,
}

impl<'a> Graph<'a> {
    fn new(recording: &'a Recording) -> Self {
        let made = |(place, op): (usize, &'a burn::backend::ir::OperationIr)| {
            op.outputs().map(move |output| (output.id, place)).collect::<Vec<_>>()
        };
        Self { recording, producers: recording.operations.iter().enumerate().flat_map(made).collect() }
    }

    /// The operations that these tensors need.
    fn needed_for<'t>(&self, tensors: impl Iterator<Item = &'t TensorIr>) -> Vec<bool> {
        let mut needed = vec![false; self.recording.operations.len()];
        let mut left: Vec<usize> = tensors.filter_map(|tensor| self.producers.get(&tensor.id).copied()).collect();
        while let Some(place) = left.pop() {
            if !std::mem::replace(&mut needed[place], true) {
                let inputs = self.recording.operations[place].inputs();
                left.extend(inputs.filter_map(|input| self.producers.get(&input.id).copied()));
            }
        }
        needed
    }

    /// The operations that exchanges of the forward and of the backward need, including the exchanges.
    fn needed_for_exchanges(&self) -> [Vec<bool>; 2] {
        let Recording { operations, custom, edges, .. } = self.recording;
        let mut of_backward: HashSet<TensorId> = edges.seeds.iter().flatten().map(|seed| seed.id).collect();
        let (mut forward, mut backward) = (Vec::new(), Vec::new());
        for op in operations {
            let depends = op.inputs().any(|input| of_backward.contains(&input.id));
            if depends {
                of_backward.extend(op.outputs().map(|output| output.id));
            }
            if custom.ranks_of(op).is_some() {
                if depends { &mut backward } else { &mut forward }.extend(op.outputs());
            }
        }
        [forward, backward].map(|exchanged| self.needed_for(exchanged.into_iter()))
    }

    /// The operations that at least two of these tensors need.
    fn needed_by_several<'t>(&self, tensors: impl Iterator<Item = &'t TensorIr>) -> Vec<bool> {
        let mut counts = vec![0_usize; self.recording.operations.len()];
        for tensor in tensors {
            let needed = self.needed_for(std::iter::once(tensor));
            counts.iter_mut().zip(needed).for_each(|(count, needed)| *count += usize::from(needed));
        }
        counts.into_iter().map(|count| count > 1).collect()
    }
}
