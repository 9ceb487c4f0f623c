//! What needs a process for itself: bytes alive on the heap, measured, and Burn's one random generator, disturbed.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests fail by panicking and print what they covered")]

mod draws;
mod failures;
mod heap;
mod held;
mod lengths;
mod members;
mod planned;
mod predicted;
mod recompute;
mod release;
mod seeded;
mod sharded;
