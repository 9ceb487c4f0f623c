//! Memory is given back: bytes alive on the heap, measured, in a binary of its own.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests fail by panicking and print what they covered")]

mod heap;
mod held;
mod recompute;
mod release;
mod sharded;
