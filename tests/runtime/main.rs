//! Tests of the runtime, in one binary.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests fail by panicking and print what they covered")]

mod auto;
mod boundary;
mod cases;
mod checkpoint;
mod concurrency;
mod contract;
mod deferred;
mod evaluation;
mod faults;
mod faulty;
mod hooked;
mod interleave;
mod links;
mod merged;
mod microbatches;
mod noisy;
mod parity;
mod profile;
mod recompute;
mod refusals;
mod seam;
mod seeded;
mod split;
mod waits;
mod watchdog;
mod wire;
