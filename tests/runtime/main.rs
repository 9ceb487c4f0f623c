//! Tests of the runtime, in one binary.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests fail by panicking and print what they covered")]

mod boundary;
mod cases;
mod concurrency;
mod contract;
mod deferred;
mod faults;
mod faulty;
mod hooked;
mod interleave;
mod links;
mod merged;
mod microbatches;
mod parity;
mod profile;
mod refusals;
mod seam;
mod seeded;
mod split;
mod watchdog;
mod wire;
