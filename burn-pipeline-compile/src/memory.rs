//! Memory of compiled programs that run one after the other on a microbatch.
//!
//! Guarantees: the bytes of live tensors are exact if each fed tensor is contiguous, one thread runs the matmuls
//! before a region, and nothing is interpreted.
//!
//! 1. Storage counts once, whatever its number of views, until its last tensor is released. A reshape that no strides
//!    can describe copies.
//! 2. A step makes its outputs while it holds all its inputs. A region has a sum for each piece of its rows until
//!    they are added, and one matrix of the matmuls that it runs after; each further thread has one more.
//! 3. A matmul that may be added to the caller's sum makes no storage; the sum is the caller's.
//! 4. An interpreted operation makes its outputs only: its temporary memory is not known.
//!
//! Not counted: packed operands, tiles and windows of convolutions, for which each thread keeps buffers until it
//! ends; and memory that threads keep for reuse.

use crate::compiled::Compiled;
use crate::graph::{View, bytes};
use crate::steps::{Step, Work};
use crate::view::laid;
use burn::backend::flex::Layout;
use burn::backend::ir::{TensorId, TensorIr, TensorStatus};
use std::collections::HashMap;

/// The memory of a microbatch: the live tensors and their storage.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    tensors: HashMap<TensorId, (usize, Layout)>,
    storages: Vec<Storage>,
    bytes: usize,
}

#[derive(Clone, Debug)]
struct Storage {
    bytes: usize,
    /// The number of live tensors in it.
    holders: usize,
}

impl Memory {
    /// Adds a tensor with its own storage. `bytes` of it count: 0 for storage that exists anyway.
    pub fn feed(&mut self, tensor: &TensorIr, bytes: usize) {
        self.make(std::slice::from_ref(tensor), bytes);
    }

    /// Releases a tensor.
    pub fn release(&mut self, tensor: TensorId) {
        let Some((storage, _)) = self.tensors.remove(&tensor) else { return };
        let storage = &mut self.storages[storage];
        storage.holders -= 1;
        if storage.holders == 0 {
            self.bytes -= storage.bytes;
        }
    }

    /// The bytes of live tensors.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Runs a program. Returns the most bytes alive at once, including those alive before it.
    pub fn run(&mut self, program: &Compiled) -> usize {
        program.steps().iter().fold(self.bytes, |peak, step| peak.max(self.step(step)))
    }

    fn step(&mut self, step: &Step) -> usize {
        let before = self.bytes;
        let scratch = match &step.work {
            Work::Region { region, made } => {
                region.given_bytes().for_each(|(output, bytes)| self.make(&output.tensors, bytes));
                region.peak_bytes(*made)
            }
            Work::View(how) => {
                if let ([input], [output]) = (&step.reads[..], &step.outputs[..]) {
                    self.view(input, how, output);
                }
                0
            }
            Work::Matmul { sum: Some(_) } => {
                self.make(&step.outputs, 0);
                0
            }
            Work::Convolve(_) => {
                // Operands that are not contiguous are copied.
                let copied = step.reads.iter().filter(|read| !self.is_in_order(read)).map(bytes).sum::<usize>();
                self.make(&step.outputs, step.outputs.iter().map(bytes).sum());
                self.bytes - before + copied
            }
            Work::Matmul { sum: None } | Work::Fill(_) | Work::Place(_) | Work::Interpret(_) => {
                step.outputs.iter().for_each(|output| self.make(std::slice::from_ref(output), bytes(output)));
                0
            }
        };
        let peak = self.bytes.max(before + scratch);
        let read = step.reads.iter().filter(|read| read.status == TensorStatus::ReadWrite);
        read.chain(&step.drops).for_each(|tensor| self.release(tensor.id));
        peak
    }

    fn is_in_order(&self, tensor: &TensorIr) -> bool {
        self.tensors.get(&tensor.id).is_none_or(|(_, layout)| layout.contiguous_offsets().is_some())
    }

    fn view(&mut self, input: &TensorIr, how: &View, output: &TensorIr) {
        let Some((storage, layout)) = self.tensors.get(&input.id) else { return };
        let storage = *storage;
        match laid(layout, how, &output.shape) {
            Some(layout) => {
                self.release(output.id);
                self.storages[storage].holders += 1;
                self.tensors.insert(output.id, (storage, layout));
            }
            None => self.make(std::slice::from_ref(output), bytes(output)),
        }
    }

    /// Makes storage that these tensors share.
    fn make(&mut self, tensors: &[TensorIr], bytes: usize) {
        tensors.iter().for_each(|tensor| self.release(tensor.id));
        let storage = self.storages.len();
        self.storages.push(Storage { bytes, holders: tensors.len() });
        self.bytes += bytes;
        let laid = |tensor: &TensorIr| (tensor.id, (storage, Layout::contiguous(tensor.shape.clone())));
        self.tensors.extend(tensors.iter().map(laid));
    }
}
