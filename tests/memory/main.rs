//! Tests that need their own process: they measure the heap, or disturb Burn's one random generator.

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
