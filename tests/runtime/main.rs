//! Tests of the runtime, in one binary.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "helpers of tests stop where something fails")]

mod boundary;
mod cases;
mod concurrency;
mod contract;
mod faults;
mod faulty;
mod hooked;
mod microbatches;
mod parity;
mod refusals;
mod seam;
mod split;
mod watchdog;
