//! Last uses along a sequence of programs: where tensors are released, and what is held between programs.
//!
//! 1. The last operation, in any program of the sequence, that reads a tensor is found; taking a tensor out after a
//!    program counts as a read.
//! 2. There the tensor's status becomes `ReadWrite`: the interpreter releases the storage, and the backend may write
//!    in place. An operation that reads one tensor twice must not, so an explicit drop follows it.
//! 3. A tensor that nothing reads is dropped at once.
//! 4. Parameters, and views of them, that are alive between two programs are listed, so that they can be released
//!    there.
//! 5. The storage that is alive at the end of each program is counted, except that of parameters and constants, which
//!    the module holds in any case.

use super::cost;
use super::custom::CustomOps;
use super::part::{Phase, Program};
use super::recording::Recording;
use super::storage::Storages;
use burn::backend::ir::{IrVisitorMut, OperationIr, TensorId, TensorIr, TensorStatus};
use std::collections::{HashMap, HashSet};

/// A program before last uses are known.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    pub(super) phase: Phase,
    pub(super) operations: Vec<OperationIr>,
    /// What can be fed before it; only what is read is fed.
    pub(super) feeds: Vec<TensorIr>,
    /// What is taken out after it.
    pub(super) takes: Vec<TensorIr>,
}

/// A point in a sequence: the program's index, then the operation's. Results are taken out after all operations.
type Point = (usize, usize);

/// Finds last uses along one sequence; `custom` contains its custom operations.
pub(super) fn programs<const N: usize>(drafts: [Draft; N], recording: &Recording, custom: &CustomOps) -> [Program; N] {
    let last = last_uses(&drafts);
    let (mut live, mut part) = (Live::new(recording), 0);
    drafts.map(|draft| {
        let made = program(part, draft, &last, &mut live, custom);
        part += 1;
        made
    })
}

fn last_uses(drafts: &[Draft]) -> HashMap<TensorId, Point> {
    let mut last = HashMap::new();
    for (part, draft) in drafts.iter().enumerate() {
        for (place, op) in draft.operations.iter().enumerate() {
            last.extend(op.inputs().map(|input| (input.id, (part, place))));
        }
        last.extend(draft.takes.iter().map(|taken| (taken.id, (part, draft.operations.len()))));
    }
    last
}

fn program(part: usize, draft: Draft, last: &HashMap<TensorId, Point>, live: &mut Live, custom: &CustomOps) -> Program {
    let end = draft.operations.len();
    let mut fed = HashSet::new();
    let feeds: Vec<TensorIr> =
        draft.feeds.into_iter().filter(|tensor| last.contains_key(&tensor.id) && fed.insert(tensor.id)).collect();
    feeds.iter().for_each(|tensor| live.feed(tensor));
    let (mut flops, mut bytes) = (0, 0);
    let mut operations = Vec::with_capacity(end);
    live.start();
    for (place, mut op) in draft.operations.into_iter().enumerate() {
        (flops, bytes) = (flops + cost::flops(&op, custom), bytes + cost::bytes(&op));
        let dropped = mark(&mut op, (part, place), last);
        live.run(&op, &dropped);
        operations.push(op);
        operations.extend(dropped.into_iter().map(OperationIr::Drop));
    }
    let mut takes = draft.takes;
    let mut given = HashSet::new();
    // In reverse, since a tensor that is taken out twice may only be released the second time.
    for taken in takes.iter_mut().rev() {
        let gives_up = last.get(&taken.id) == Some(&(part, end)) && given.insert(taken.id);
        taken.status = if gives_up { TensorStatus::ReadWrite } else { TensorStatus::ReadOnly };
        if gives_up {
            live.release(taken.id);
        }
    }
    let (peak, held) = (live.peak, live.bytes);
    let (borrowed, holds_views) = (live.parameters(), live.holds_views());
    Program {
        phase: draft.phase,
        operations,
        feeds,
        takes,
        flops,
        bytes,
        peak,
        held,
        borrowed,
        holds_views,
        custom: custom.clone(),
        compiled: None,
    }
}

/// Sets the status of an operation's tensors; returns the tensors to be dropped after it.
fn mark(op: &mut OperationIr, point: Point, last: &HashMap<TensorId, Point>) -> Vec<TensorIr> {
    let outputs: Vec<TensorIr> = op.outputs().cloned().collect();
    let mut reads: HashMap<TensorId, usize> = HashMap::new();
    op.inputs().for_each(|input| *reads.entry(input.id).or_default() += 1);
    let mut seen = HashSet::new();
    let ends_here = |input: &TensorIr| reads[&input.id] > 1 && last.get(&input.id) == Some(&point);
    let twice = op.inputs().filter(|input| ends_here(input) && seen.insert(input.id));
    let unread = outputs.iter().filter(|output| !last.contains_key(&output.id));
    let dropped = twice.chain(unread).cloned().map(|t| TensorIr { status: TensorStatus::ReadWrite, ..t }).collect();
    op.visit_mut(&mut Mark { outputs: &outputs, reads: &reads, point, last });
    dropped
}

struct Mark<'a> {
    outputs: &'a [TensorIr],
    reads: &'a HashMap<TensorId, usize>,
    point: Point,
    last: &'a HashMap<TensorId, Point>,
}

impl IrVisitorMut for Mark<'_> {
    fn visit_tensor_mut(&mut self, tensor: &mut TensorIr) {
        let output = self.outputs.iter().any(|output| output.id == tensor.id);
        let once = self.reads.get(&tensor.id) == Some(&1);
        tensor.status = match output {
            true => TensorStatus::NotInit,
            false if once && self.last.get(&tensor.id) == Some(&self.point) => TensorStatus::ReadWrite,
            false => TensorStatus::ReadOnly,
        };
    }
}

/// What is alive at a point of the sequence.
struct Live {
    /// Each tensor with the one that owns its storage.
    tensors: HashMap<TensorId, TensorId>,
    /// The number of live tensors that use the storage that this one owns.
    holders: HashMap<TensorId, usize>,
    storages: Storages,
    /// Parameters and constants: storage that the module holds.
    borrowed: HashSet<TensorId>,
    parameters: Vec<TensorIr>,
    /// The size of the storages behind all live tensors, without borrowed ones.
    bytes: usize,
    peak: usize,
}

impl Live {
    fn new(recording: &Recording) -> Self {
        let constants = recording.constants.iter().map(|(id, _)| *id);
        let borrowed = recording.edges.parameters.iter().map(|tensor| tensor.id).chain(constants).collect();
        Self {
            tensors: HashMap::new(),
            holders: HashMap::new(),
            storages: Storages::default(),
            borrowed,
            parameters: recording.edges.parameters.clone(),
            bytes: 0,
            peak: 0,
        }
    }

    /// The parameters that are alive, each once.
    fn parameters(&self) -> Vec<TensorIr> {
        let mut seen = HashSet::new();
        let is_alive = |tensor: &&TensorIr| self.tensors.contains_key(&tensor.id) && seen.insert(tensor.id);
        let alive = self.parameters.iter().filter(is_alive);
        alive.map(|tensor| TensorIr { status: TensorStatus::ReadWrite, ..tensor.clone() }).collect()
    }

    /// Returns true if views of parameters are alive.
    fn holds_views(&self) -> bool {
        let parameters: HashSet<TensorId> = self.parameters.iter().map(|parameter| parameter.id).collect();
        self.tensors.iter().any(|(id, root)| !parameters.contains(id) && parameters.contains(root))
    }

    fn feed(&mut self, tensor: &TensorIr) {
        self.storages.own(tensor);
        self.hold(tensor.id);
    }

    fn start(&mut self) {
        self.peak = self.bytes;
    }

    fn run(&mut self, op: &OperationIr, dropped: &[TensorIr]) {
        self.storages.note(op);
        op.outputs().for_each(|output| self.hold(output.id));
        self.peak = self.peak.max(self.bytes);
        let read = op.inputs().filter(|input| input.status == TensorStatus::ReadWrite);
        read.chain(dropped).for_each(|tensor| self.release(tensor.id));
    }

    fn hold(&mut self, tensor: TensorId) {
        self.release(tensor);
        let root = self.storages.root(tensor);
        self.tensors.insert(tensor, root);
        let holders = self.holders.entry(root).or_default();
        *holders += 1;
        if *holders == 1 && !self.borrowed.contains(&root) {
            self.bytes += self.storages.bytes(root);
        }
    }

    fn release(&mut self, tensor: TensorId) {
        let Some(root) = self.tensors.remove(&tensor) else { return };
        let Some(holders) = self.holders.get_mut(&root) else { return };
        *holders -= 1;
        if *holders == 0 && !self.borrowed.contains(&root) {
            self.bytes -= self.storages.bytes(root);
        }
    }
}
