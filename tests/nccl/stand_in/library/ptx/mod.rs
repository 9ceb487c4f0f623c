//! Interprets the PTX that CubeCL compiles through LLVM: the processors of the mock GPU.
//!
//! 1. `text.rs` splits a module into its parts and statements, `module.rs` lays out variables and parameters,
//!    `names.rs` maps registers and constants to slots.
//! 2. `decode/` turns each statement once into an instruction (`code.rs`), `flow.rs` finds where the branches of a
//!    warp meet again.
//! 3. `grid.rs` runs the blocks one after the other, the warps of a block one after the other up to each barrier.
//!    `warp.rs` runs a warp's 32 lanes in step; `integers.rs`, `floats.rs`, `half.rs`, `convert.rs`, `bits.rs`,
//!    `compare.rs`, `lanes.rs` and `atomics.rs` are what it computes.
//! 4. `space.rs` checks every access to memory, `touched.rs` records which memory a kernel has used.
//!
//! Guarantees: an instruction, a type or a state space that it does not know ends the process by name when its module
//! is loaded (`broken.rs`). Arithmetic is that of PTX ISA to the bit: every rounding that is
//! accepted is exact (`fma` with one rounding, half precision as well), a NaN result is the canonical one, and
//! division of integers by zero gives all ones.
//!
//! Two families are more exact than a GPU, which the ISA only gives bounds for: the `.approx` and `.full` functions,
//! and libdevice's functions. Both are computed in double precision (the host's functions) and rounded once, so their
//! error is below one unit in the last place of the result. `ex2.approx` has 2 on a GPU, `__nv_expf` has 1. Kernels
//! call libdevice's functions by name, since the tests give CubeCL a libdevice without any (`libdevice.rs`).
//!
//! Not modelled: time, caches, the memory order between the threads of a kernel (every access is seen at once), races
//! between them, and warps that wait for another warp without a barrier (they would never end).

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
mod space;
mod text;
mod touched;
mod warp;

pub use grid::{Launch, run};
pub use module::{Kernel, Module};
pub use space::Blocks;
