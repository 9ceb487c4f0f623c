//! The operations as CubeCL kernels.
//!
//! All of them follow the same rules. Tensors are made contiguous first; floats are read in their own type and
//! accumulated in f32 (f64 for f64); integers are i32. Sums over many tokens are taken in parts of `launch::PART`
//! numbers, then over the parts, so they need neither atomics nor barriers and are bitwise reproducible. One unit
//! computes one number or one vector; units beyond the last return at once.

#![allow(clippy::too_many_arguments, reason = "a kernel takes every size that it needs")]

mod assign_rows;
mod backend;
mod grouped;
mod inject;
mod launch;
mod route;
mod rows;
mod z_loss;
