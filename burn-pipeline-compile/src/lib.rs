//! Captured stages of `burn-pipeline` compiled for processors.
//!
//! A captured stage is a list of operations in Burn's intermediate representation, with all shapes known. The interpreter runs them
//! one by one, and each element-wise operation reads its operands from memory and writes its result there. In training, autodiff
//! decomposes softmax, layer norm and GELU into such operations, and they take as long as the matrix products. This crate
//! compiles the list:
//!
//! 1. [`Compiled::new`] reads the operations as a graph and cleans it: constants, operations that change nothing, what is
//!    computed twice or for nothing.
//! 2. Element-wise functions, broadcasts, reductions of rows and sums over rows become regions, found by what reads what and not by
//!    names. A region runs tile by tile, some rows at a time, and what only it reads never leaves the cache. Loops are
//!    vectorised, in versions for several processors; which one runs is decided when it runs.
//! 3. Reshapes, slices and swapped dimensions are strides. Products of matrices read operands as they lie and write storage that is not
//!    cleared before, by kernels for AVX-512 or, elsewhere, those of Burn's Flex backend; a linear layer, and its weight's gradient, is one
//!    product over all rows of a microbatch, and so is what a recurrent layer's steps add to a weight's gradient. Convolutions
//!    are products of blocks of windows. A region that alone reads a batch of products (attention's scores) runs behind each
//!    matrix of it. A weight's gradient is added to the caller's running sum by the product itself ([`Tensors::sum`]).
//! 4. A forward keeps less for its backward ([`hold_less`]): what follows from other kept tensors is computed from them.
//! 5. Operands of products are rounded to `bf16` and summed in `f32` if the caller asks for it with the proof that the processor can
//!    ([`Bf16`]). A forward then keeps what its backward only multiplies in half of the bytes ([`hold_rounded`]).
//! 6. What a run has in memory is known before it ([`Memory`]).
//! 7. All else is run by the interpreter that the caller brings ([`Tensors`]). So whatever can be captured can be compiled. What the caller
//!    or its interpreter gives is compared with the program before a step reads it ([`Mismatch`]).
//!
//! Guarantees: a compiled program reads, keeps and releases the tensors that the list does. It is one function of its inputs,
//! whatever the schedule and the number of threads. Against the list run one by one: each result within rounding, as `exp`,
//! `log`, `erf` and `tanh` are approximated within 2 units in the last place (`tanh` 3), quotients by constants are
//! products, and sums have another order. NaN and infinities stay what they are, but for gradients
//! of a softmax or a norm whose divisor overflows: they are NaN.
//!
//! The crates `burn-ir` and `burn-flex` promise no stable interface, hence the exact versions in `Cargo.toml`.

mod clean;
mod compiled;
mod convolution;
mod fuse;
mod graph;
mod hold;
mod memory;
mod mismatch;
mod multiply;
mod needs;
mod operands;
mod place;
mod product;
mod read;
mod region;
mod steps;
mod storage;
mod tile;
mod view;

pub use compiled::{Compiled, Summary, Tensors};
pub use hold::hold_less;
pub use memory::Memory;
pub use mismatch::Mismatch;
pub use multiply::Bf16;
pub use operands::hold_rounded;
