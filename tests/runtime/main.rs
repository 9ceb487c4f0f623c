//! Tests of the runtime, in one binary.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests fail by panicking and print what they covered")]

mod boundary;
mod cases;
mod concurrency;
mod contract;
mod deferred;
mod edges;
mod faults;
mod faulty;
mod hooked;
mod lengths;
mod metadata;
mod microbatches;
mod parity;
mod refusals;
mod seam;
mod seeded;
mod shared;
mod skips;
mod split;
mod watchdog;
