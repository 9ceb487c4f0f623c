//! The peak that is predicted is the peak that is allocated, for random programs.
//!
//! Storage of tensors is what is allocated on lines of the cache. Programs are so small that no memory is kept to be
//! used again.

use crate::listed::Listed;
use crate::random::{Step, grow, noise, step};
use crate::run::{Run, compiled};
use burn::backend::flex::FlexTensor;
use burn::backend::ir::{OperationIr, TensorId, TensorIr};
use burn_pipeline_compile::{Memory, Mismatch, Tensors};
use proptest::prelude::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Counts the bytes of this thread's storage.
struct Counting;

#[global_allocator]
static HEAP: Counting = Counting;

const LINE: usize = 64;
/// Larger memory is kept.
const SMALL: usize = 16 * 1024;

thread_local! {
    static NOW: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize, layout: Layout) {
    if layout.align() == LINE && layout.size() < SMALL {
        NOW.set(NOW.get() + bytes);
        MOST.set(MOST.get().max(NOW.get()));
    }
}

// SAFETY: all is done by the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size().cast_signed(), layout);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-layout.size().cast_signed(), layout);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

/// A run in which every matmul that can be is added to a sum.
struct Summed<'a>(Run, &'a [TensorIr]);

impl Tensors for Summed<'_> {
    type Error = Mismatch;

    fn read(&mut self, tensor: &TensorIr) -> FlexTensor {
        self.0.read(tensor)
    }

    fn write(&mut self, tensor: &TensorIr, value: FlexTensor) {
        self.0.write(tensor, value);
    }

    fn sum(&mut self, kept: TensorId) -> Option<FlexTensor> {
        self.1.iter().find(|wanted| wanted.id == kept).map(|wanted| noise(&wanted.shape, 1))
    }

    fn interpret(&mut self, operation: &OperationIr) -> Result<(), Mismatch> {
        self.0.interpret(operation)
    }
}

fn base() -> impl Strategy<Value = [usize; 3]> {
    prop_oneof![
        Just([2, 130, 3]),
        Just([3, 17, 5]),
        Just([1, 5, 33]),
        Just([4, 3, 2]),
        Just([3, 4, 4]),
        Just([5, 5, 17]),
        Just([2, 5, 5])
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, max_shrink_iters: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn the_peak_of_a_program_is_as_predicted(
        base in base(),
        steps in prop::collection::vec(step(), 1..24),
        kept in prop::collection::vec(0..1000_usize, 1..5),
    ) {
        let mut listed = Listed::default();
        let shapes = [base, [1, base[1], base[2]], [base[0], base[1], 1], [1, 1, base[2]], base];
        let mut tensors: Vec<TensorIr> = shapes.iter().map(|shape| listed.feed(shape)).collect();
        for step in steps.iter().filter(|step| !matches!(step, Step::Exchange(..))) {
            grow(&mut listed, &mut tensors, &base, step);
        }
        // With room for the sums of pieces.
        let large = |tensor: &TensorIr| tensor.shape.num_elements() * size_of::<f32>() >= SMALL / 2;
        prop_assume!(!listed.operations.iter().flat_map(OperationIr::outputs).any(large));
        let mut wanted: Vec<TensorIr> = kept.iter().map(|at| tensors[at % tensors.len()].clone()).collect();
        wanted.push(tensors.last().unwrap().clone());
        wanted.sort_by_key(|tensor| tensor.id.value());
        wanted.dedup_by_key(|tensor| tensor.id);
        let program = compiled(&listed, &wanted);
        prop_assume!(program.summary().interpreted.is_empty());
        let fed: Vec<(TensorIr, FlexTensor)> =
            listed.fed.iter().cloned().enumerate().map(|(seed, tensor)| { let value = noise(&tensor.shape, seed); (tensor, value) }).collect();
        // Threads make their own buffers once.
        program.run(0..program.len(), &mut Summed(Run::new(&fed), &wanted)).unwrap();
        let mut run = Summed(Run::new(&fed), &wanted);
        let before = NOW.get();
        MOST.set(before);
        program.run(0..program.len(), &mut run).unwrap();
        let mut memory = Memory::default();
        fed.iter().for_each(|(tensor, _)| memory.feed(tensor, 0));
        let peak = memory.run(&program);
        prop_assert_eq!(MOST.get() - before, peak.cast_signed(), "the peak of\n{}", program);
        prop_assert_eq!(NOW.get() - before, memory.bytes().cast_signed(), "left by\n{}", program);
    }
}
