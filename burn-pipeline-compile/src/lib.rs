//! Compiles captured stages of `burn-pipeline` for CPUs.
//!
//! A captured stage is a list of operations in Burn's intermediate representation, with all shapes known. The
//! interpreter runs them one by one: each element-wise operation reads its operands from memory and writes its result
//! there. In training, autodiff decomposes softmax, layer norm and GELU into such operations, and they take as long
//! as the matmuls. This crate compiles the list:
//!
//! 1. [`Compiled::new`] reads the operations as a graph and simplifies it: it folds constants and removes operations
//!    that change nothing, are duplicates, or have unused results.
//! 2. Element-wise functions, broadcasts, reductions of rows and sums over rows are fused into regions. They are
//!    found by their data dependencies, not by the names of operations. A region runs tile by tile, some rows at a
//!    time, so its internal tensors never leave the cache. Loops are vectorised, in versions for several processors;
//!    the version is chosen at run time.
//! 3. Reshapes, slices and swapped dimensions become strides. Matmuls read operands with any strides and write
//!    storage that was not cleared before. Their kernels are for AVX-512 or, elsewhere, those of Burn's Flex backend.
//!    A linear layer is one matmul over all rows of a microbatch, and so is its weight's gradient. All steps of a
//!    recurrent layer together add one matmul to a weight's gradient. Convolutions are matmuls of blocks of windows. If
//!    only one region reads a batch of matmuls (such as attention's scores), it runs right after each of its
//!    matrices. A weight's gradient is added to the caller's running sum within its matmul ([`Tensors::sum`]).
//! 4. A forward keeps fewer tensors for its backward ([`hold_less`]): the backward recomputes those that follow from
//!    others.
//! 5. Tensors of `bf16` and `f16` take two bytes. They are widened as they are read; tiles and matmuls compute in
//!    `f32`, and each result in half precision is rounded at once. So casts are part of the operations around them.
//! 6. If the caller passes a proof that the processor supports it ([`Bf16`]), operands of matmuls are rounded to
//!    `bf16`, or split into several numbers of `bf16`, and products are summed in `f32`. If they are rounded, tensors
//!    that are only multiplied take half of the bytes: those that a forward keeps for its backward ([`hold_rounded`]),
//!    and results of regions.
//! 7. The memory of a run is known before it ([`Memory`]).
//! 8. The caller's interpreter runs all other operations ([`Tensors`]), so every captured program can be compiled.
//!    Tensors from the caller or its interpreter are compared with the program before a step reads them
//!    ([`Mismatch`]).
//!
//! Guarantees: a compiled program reads, keeps and releases the same tensors as the list. Its results depend on its
//! inputs alone, whatever the schedule and the number of threads. They equal those of the list, run one by one, within
//! rounding: `exp`, `log`, `erf` and `tanh` are approximated within 2 units in the last place (`tanh` 3), GELU's normal
//! distribution within 1.2e-7, divisions by constants become multiplications by the inverse, and sums have another
//! order. NaN and infinities are preserved, with one exception: gradients of a softmax or a norm whose divisor
//! overflows are NaN. A sum of a single value, or of slices that do not overlap, keeps -0, where the list gives +0. In
//! half precision, element-wise functions give the list's bits, except that an approximated one may round to the other
//! neighbour (GELU below -2: to a number up to 1e-6 away). Sums and matmuls are rounded once, also where the list
//! rounds in between.
//!
//! The crates `burn-ir` and `burn-flex` promise no stable interface, so `Cargo.toml` pins exact versions.

mod clean;
mod compiled;
mod convolution;
mod convolve;
mod fuse;
mod graph;
mod half;
mod half_matmul;
mod hold;
mod matmul;
mod matmul_kernel;
mod memory;
mod mismatch;
mod multiply;
mod needs;
mod operands;
mod place;
mod processor;
mod read;
mod region;
mod steps;
mod storage;
mod tile;
mod view;

pub use compiled::{Compiled, Summary, Tensors};
pub use graph::operation_name;
pub use hold::hold_less;
pub use memory::Memory;
pub use mismatch::Mismatch;
pub use multiply::{Bf16, Parts};
pub use operands::hold_rounded;
