//! Overlaps exchanges of a group with computation: each starts as early as possible, and is awaited where its result
//! is first read.
//!
//! Guarantees: every operation computes what it did before, since it reads the same tensors. Random draws keep their
//! order. Exchanges start in the recorded order, on all members alike, and are awaited in that order. At most
//! [`UNDER_WAY`] are in flight at once, and none at the end of the program.
//!
//! 1. An exchange becomes its two halves ([`CapturedOp::halves`](super::CapturedOp::halves)).
//! 2. What the next start needs comes first, up to the start. So an operation that it does not need (the gradient of
//!    a weight, recorded before the exchange of the input's gradient) comes after it.
//! 3. If the start needs a result that is in flight, or nothing is left to start, everything runs that was recorded
//!    before that start and before the first reader of a result in flight.
//! 4. Then the exchange that started first is awaited.
//!
//! An operation that step 2 delays keeps its operands for that long: those of the operations between two exchanges.
//! Only what a start needs runs earlier than recorded.
//!
//! This is the overlap of tensor parallelism in Megatron-LM (`async_tensor_model_parallel_allreduce`), for all
//! exchanges of a program.

use super::custom::CustomOps;
use super::draws::draw;
use burn::backend::ir::{CustomOpIr, OperationIr, TensorId};
use std::collections::{BTreeSet, HashMap, VecDeque};

/// The maximum number of exchanges in flight: what was sent waits in the memory of its receiver. A block's backward
/// has three without an order among them: those of an activation and of a norm's two weights.
const UNDER_WAY: usize = 4;

/// The operations of one program, with its exchanges overlapped.
pub(super) fn overlapped(operations: Vec<OperationIr>, custom: &CustomOps) -> Vec<OperationIr> {
    match operations.iter().any(|op| custom.halves(op).is_some()) {
        true => Overlap::new(halved(operations, custom)).ordered(),
        false => operations,
    }
}

/// The role of an operation in the order of exchanges.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Computes,
    Starts,
    Waits,
}

/// Replaces each exchange by its halves, one after the other.
fn halved(operations: Vec<OperationIr>, custom: &CustomOps) -> Vec<(Kind, OperationIr)> {
    let mut all = Vec::with_capacity(operations.len());
    for op in operations {
        match (custom.halves(&op), op) {
            (Some([start, wait]), OperationIr::Custom(op)) => {
                let (inputs, outputs) = (op.inputs.clone(), Vec::new());
                let start = CustomOpIr { id: start, inputs, outputs, scalars: Vec::new() };
                all.push((Kind::Starts, OperationIr::Custom(start)));
                all.push((Kind::Waits, OperationIr::Custom(CustomOpIr { id: wait, ..op })));
            }
            (_, op) => all.push((Kind::Computes, op)),
        }
    }
    all
}

/// Operations that are being reordered; each is identified by its index in the old order.
struct Overlap {
    operations: Vec<(Kind, OperationIr)>,
    /// The operations that each one comes after.
    needs: Vec<Vec<usize>>,
    /// The operations that come after each one.
    needed: Vec<Vec<usize>>,
    /// How many of the operations that each one comes after are not placed yet.
    missing: Vec<usize>,
    /// What could come next, except waits.
    ready: BTreeSet<usize>,
    /// The starts of exchanges that have not started.
    starts: VecDeque<usize>,
    /// True for the operations that the first of these needs, and for that start itself.
    for_start: Vec<bool>,
    /// The waits of exchanges in flight.
    waits: VecDeque<usize>,
    /// The first reader of each wait's result.
    reader: HashMap<usize, usize>,
}

impl Overlap {
    fn new(operations: Vec<(Kind, OperationIr)>) -> Self {
        let count = operations.len();
        let needs = needs(operations.iter().map(|(_, op)| op));
        let mut needed = vec![Vec::new(); count];
        for (place, needs) in needs.iter().enumerate() {
            needs.iter().for_each(|&need| needed[need].push(place));
        }
        let missing: Vec<usize> = needs.iter().map(Vec::len).collect();
        let kind = |place: usize| operations[place].0;
        let ready = (0..count).filter(|&place| missing[place] == 0 && kind(place) != Kind::Waits).collect();
        let starts = (0..count).filter(|&place| kind(place) == Kind::Starts).collect();
        let reader = first_readers(&operations);
        let for_start = vec![false; count];
        let mut overlap =
            Self { operations, needs, needed, missing, ready, starts, for_start, waits: VecDeque::new(), reader };
        overlap.find_for_start();
        overlap
    }

    fn ordered(mut self) -> Vec<OperationIr> {
        let mut order = Vec::with_capacity(self.operations.len());
        while let Some(place) = self.next() {
            self.place(place);
            order.push(place);
        }
        let mut operations: Vec<Option<OperationIr>> = self.operations.into_iter().map(|(_, op)| Some(op)).collect();
        order.into_iter().filter_map(|place| operations[place].take()).collect()
    }

    fn next(&self) -> Option<usize> {
        let for_start = || self.ready.iter().copied().find(|&place| self.for_start[place]);
        let readers = self.waits.iter().filter_map(|wait| self.reader.get(wait));
        let limit = readers.chain(self.starts.front()).min();
        let before = |place: &usize| limit.is_none_or(|limit| place < limit);
        let computes = |place: &usize| self.operations[*place].0 == Kind::Computes;
        let other = || self.ready.iter().copied().find(|place| before(place) && computes(place));
        let start = if self.waits.len() < UNDER_WAY { for_start() } else { None };
        start.or_else(other).or_else(|| self.waits.front().copied())
    }

    fn place(&mut self, place: usize) {
        self.ready.remove(&place);
        for at in std::mem::take(&mut self.needed[place]) {
            self.missing[at] -= 1;
            if self.missing[at] == 0 && self.operations[at].0 != Kind::Waits {
                self.ready.insert(at);
            }
        }
        match self.operations[place].0 {
            Kind::Computes => {}
            Kind::Starts => {
                self.starts.pop_front();
                // A wait follows its start in the old order.
                self.waits.push_back(place + 1);
                self.find_for_start();
            }
            Kind::Waits => _ = self.waits.pop_front(),
        }
    }

    /// Finds the operations that the next start needs.
    fn find_for_start(&mut self) {
        let mut left: Vec<usize> = self.starts.front().copied().into_iter().collect();
        while let Some(place) = left.pop() {
            if !std::mem::replace(&mut self.for_start[place], true) {
                left.extend(&self.needs[place]);
            }
        }
    }
}

/// The operations that each one comes after: the producers of its inputs and, for a draw, the draw before. Starts and
/// waits keep their order in queues.
fn needs<'a>(operations: impl Iterator<Item = &'a OperationIr>) -> Vec<Vec<usize>> {
    let mut makers: HashMap<TensorId, usize> = HashMap::new();
    let (mut all, mut drawn) = (Vec::new(), None);
    for (place, op) in operations.enumerate() {
        let mut needs: Vec<usize> = op.inputs().filter_map(|input| makers.get(&input.id).copied()).collect();
        if draw(op).is_some() {
            needs.extend(drawn.replace(place));
        }
        needs.sort_unstable();
        needs.dedup();
        all.push(needs);
        makers.extend(op.outputs().map(|output| (output.id, place)));
    }
    all
}

/// For each wait, the first operation that reads its result.
fn first_readers(operations: &[(Kind, OperationIr)]) -> HashMap<usize, usize> {
    let mut given: HashMap<TensorId, usize> = HashMap::new();
    let mut readers = HashMap::new();
    for (place, (kind, op)) in operations.iter().enumerate() {
        for wait in op.inputs().filter_map(|input| given.get(&input.id)) {
            readers.entry(*wait).or_insert(place);
        }
        if *kind == Kind::Waits {
            given.extend(op.outputs().map(|output| (output.id, place)));
        }
    }
    readers
}

#[cfg(test)]
mod tests;
