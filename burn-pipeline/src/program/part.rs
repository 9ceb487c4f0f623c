//! One program: the operations of `F`, `I`, `W` or `B` of a stage on one microbatch, with its edges and its cost.

use super::compiled::Compiled;
use super::cost;
use super::custom::CustomOps;
use super::error::ProgramError;
use super::replay::{Replay, Sums};
use super::storage::bytes_of;
use burn::backend::ir::{OperationIr, TensorId, TensorIr, TensorStatus};
use burn_pipeline_compile::{Bf16, Memory, operation_name};
use std::collections::HashSet;
use std::ops::Range;

/// A part of a stage's work on one microbatch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub(crate) enum Phase {
    /// `F`.
    Forward,
    /// `I`: the gradients of the input.
    Input,
    /// `W`: the gradients of the weights.
    Weight,
    /// `B`: both.
    Backward,
}

/// A list of operations with its edges and its cost.
#[derive(Clone, PartialEq, Debug)]
pub struct Program {
    pub(super) phase: Phase,
    pub(super) operations: Vec<OperationIr>,
    /// The tensors to feed before a run.
    pub(crate) feeds: Vec<TensorIr>,
    /// The results to take out after a run, in the order of the stage's outputs or gradients.
    pub(crate) takes: Vec<TensorIr>,
    pub(super) flops: u64,
    pub(super) bytes: u64,
    pub(super) peak: usize,
    pub(super) held: usize,
    /// Parameters that are held after a run for later programs; taking one out releases it.
    pub(crate) borrowed: Vec<TensorIr>,
    /// True if views of parameters are held after a run.
    pub(crate) holds_views: bool,
    pub(super) custom: CustomOps,
    /// The compiled program, if it runs compiled.
    pub(super) compiled: Option<Compiled>,
}

/// One operation of a program, for reports.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Operation {
    /// Its name in Burn's IR (`Matmul`, `ReluBackward`), or a custom operation's own.
    pub name: String,
    /// Floating-point operations.
    pub flops: u64,
    /// Bytes read and written.
    pub bytes: u64,
}

impl Program {
    /// Its operations, in order; drops, which compute nothing, are left out.
    pub fn operations(&self) -> impl Iterator<Item = Operation> {
        let computes = self.operations.iter().filter(|op| !matches!(op, OperationIr::Drop(_)));
        let flops = |op| cost::flops(op, &self.custom);
        computes.map(move |op| Operation { name: operation_name(op), flops: flops(op), bytes: cost::bytes(op) })
    }

    /// Floating-point operations of one run.
    pub fn flops(&self) -> u64 {
        self.flops
    }

    /// Bytes that the operations of one run read and write.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes that a microbatch holds after this program for later ones, without parameters and constants.
    pub fn held_bytes(&self) -> usize {
        self.held
    }

    /// The most bytes of tensors alive during a run, including what was held before it, without parameters, constants
    /// and running sums of gradients. For a compiled program it is exact if nothing is interpreted, fed tensors are
    /// contiguous, and one thread runs: each further thread may hold one more matrix of attention scores. For an
    /// interpreted operation only the outputs are known, as if it wrote nothing in place.
    pub fn peak_bytes(&self) -> usize {
        self.peak
    }

    /// Describes the compiled program, if there is one: how many operations are fused into how many regions, which
    /// are interpreted, and each step on a line.
    pub fn compiled(&self) -> Option<String> {
        self.compiled.as_ref().map(ToString::to_string)
    }

    /// Compiles it; `rounded` says whether operands of matmuls are rounded.
    pub(super) fn compile(&mut self, rounded: Option<Bf16>) {
        // A tensor of an earlier program may be read here, and once more later.
        let tensors = self.operations.iter().flat_map(OperationIr::nodes).chain(&self.feeds);
        let released = self.released();
        let left = tensors.map(|tensor| tensor.id).filter(|id| !released.contains(id));
        let kept = left.chain(self.takes.iter().map(|taken| taken.id)).collect();
        self.compiled = Some(Compiled::new(&self.operations, kept, rounded));
    }

    /// Finds the peak of the compiled program after others, which left their tensors in `memory`. Of the tensors that
    /// it is fed, only those in `counted` count.
    pub(super) fn find_peak(&mut self, memory: &mut Memory, counted: &HashSet<TensorId>) {
        let Some(compiled) = &self.compiled else { return };
        for tensor in &self.feeds {
            memory.feed(tensor, if counted.contains(&tensor.id) { bytes_of(tensor) } else { 0 });
        }
        self.peak = compiled.peak(memory);
        let given_up = self.takes.iter().filter(|taken| taken.status == TensorStatus::ReadWrite);
        given_up.for_each(|taken| memory.release(taken.id));
    }

    /// Its peak, if it is compiled and none of it is interpreted.
    pub(crate) fn known_peak(&self) -> Option<usize> {
        self.compiled.as_ref().filter(|compiled| compiled.is_whole()).map(|_| self.peak)
    }

    pub(crate) fn pieces(&self) -> usize {
        self.compiled.as_ref().map_or(self.operations.len(), Compiled::pieces)
    }

    /// Runs some pieces. A compiled program adds results to the sums that are given for them, if it can.
    pub(crate) fn run(
        &self,
        pieces: Range<usize>,
        replay: &mut dyn Replay,
        sums: &mut Sums,
    ) -> Result<(), ProgramError> {
        match &self.compiled {
            Some(compiled) => compiled.run(pieces, replay, sums),
            None => replay.run(&self.operations[pieces]),
        }
    }

    /// The tensors that are held after a run.
    pub(super) fn left(&self) -> HashSet<TensorId> {
        let released = self.released();
        let there = self.feeds.iter().chain(self.operations.iter().flat_map(OperationIr::outputs));
        there.map(|tensor| tensor.id).filter(|id| !released.contains(id)).collect()
    }

    fn released(&self) -> HashSet<TensorId> {
        let given_up = |tensor: &&TensorIr| tensor.status == TensorStatus::ReadWrite;
        let mut released: HashSet<TensorId> = self.takes.iter().filter(given_up).map(|tensor| tensor.id).collect();
        for op in &self.operations {
            match op {
                OperationIr::Drop(tensor) => _ = released.insert(tensor.id),
                op => released.extend(op.inputs().filter(given_up).map(|tensor| tensor.id)),
            }
        }
        released
    }

    /// Returns true if a result is returned for only one purpose.
    pub(crate) fn gives_once(&self, tensor: &TensorIr) -> bool {
        self.takes.iter().filter(|taken| taken.id == tensor.id).count() == 1
    }

    pub(crate) fn reads(&self, tensor: &TensorIr) -> bool {
        self.feeds.iter().any(|fed| fed.id == tensor.id)
    }
}
