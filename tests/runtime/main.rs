//! Tests of the runtime, in one binary.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests fail by panicking and print what they covered")]

mod after_step;
mod auto;
mod boundary;
mod cases;
mod checkpoint;
mod compiled;
mod concurrency;
mod contract;
mod deferred;
mod edges;
mod evaluation;
mod faults;
mod faulty;
mod groups;
mod hooked;
mod host;
mod interleave;
mod layers;
mod lengths;
mod links;
mod located;
mod lost;
mod merged;
mod metadata;
mod microbatches;
mod non_finite;
mod observed;
mod parameter_groups;
mod parity;
mod profile;
mod recompute;
mod refusals;
mod reports;
mod seam;
mod shared;
mod skips;
mod spans;
mod split;
mod step_to;
mod threads;
mod waits;
mod warnings;
mod watchdog;
mod wire;
