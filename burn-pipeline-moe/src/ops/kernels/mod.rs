//! The operations as CubeCL kernels.
//!
//! What they have in common: tensors are made contiguous first; floats are read in their own type and accumulated in
//! f32 (f64 for f64); integers are i32; sums over many tokens are taken in parts of [`PART`], then over the parts, so
//! they need neither atomics nor barriers and come out the same every time. One unit computes one number or one
//! vector; units beyond the last leave at once.

#![allow(clippy::too_many_arguments, reason = "a kernel is told every size that it needs")]

mod assign_rows;
mod backend;
mod grouped;
mod inject;
mod launch;
mod route;
mod rows;
mod z_loss;
