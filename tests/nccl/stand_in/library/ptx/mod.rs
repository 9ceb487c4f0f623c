//! Interprets the PTX that CubeCL compiles through LLVM: the processors of the mock GPU.
//!
//! 1. `text.rs` splits a module into its parts and statements, `module.rs` lays out variables and parameters,
//!    `names.rs` maps registers and constants to slots.
//! 2. `decode/` turns each statement once into an instruction (`code.rs`), `flow.rs` finds where the branches of a
//!    warp meet again.
//! 3. `grid.rs` runs the blocks one after the other, the warps of a block one after the other up to each barrier.
//!    `warp.rs` runs a warp's 32 lanes in step. `compute.rs` has what each lane computes (`integers.rs`, `floats.rs`,
//!    `half.rs`, `math.rs`, `convert.rs`, `bits.rs`), `lanes.rs` what they exchange, `access.rs` their memory
//!    (`atomics.rs`).
//! 4. `space.rs` checks every access to memory, `touched.rs` records which memory a kernel has used.
//!
//! Guarantees: an instruction, a type or a state space that it does not know ends the process by name when its module
//! is loaded (`broken.rs`); matrix instructions are among these. Arithmetic is that of the PTX ISA to the bit: only the
//! rounding to the nearest is accepted, and done once (for fused products and half precision as well). A NaN result of
//! 32 or 16 bits is the canonical one; division of integers by zero gives all ones. Threads run in one fixed order, so
//! that results have the same bits in every run, atomic sums of floats too.
//!
//! Two families are more exact than a GPU, for which the ISA only gives bounds: the `.approx` and `.full` functions,
//! and libdevice's functions. Both are computed in `f64` by the host and rounded once, so their error is hardly above half
//! a unit in the last place; `ex2.approx` has up to 2 units on a GPU. Kernels call libdevice's functions by name, since
//! the tests give CubeCL a libdevice without any.
//!
//! A lane that reads from one that does not take part in a shuffle gets a poisoned value, as does a thread that reads
//! shared or local memory that nothing has written. Lanes meet at barriers, shuffles and votes as their masks say, or
//! the process ends.
//!
//! Not modelled: time, caches, races between the threads of one kernel (every access is seen at once), and threads that
//! wait in a loop for another warp's write (they would never end).

mod access;
mod atomics;
mod bits;
mod code;
mod compute;
mod convert;
mod decode;
mod floats;
mod flow;
mod grid;
mod half;
mod integers;
mod lanes;
mod math;
mod module;
mod names;
mod operations;
mod space;
mod text;
mod touched;
mod warp;

pub use grid::{Launch, run};
pub use module::{Kernel, Module};
pub use space::Blocks;
