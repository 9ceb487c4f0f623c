//! Mixture-of-experts models: layers, losses, and training in a pipeline, in one binary.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests fail by panicking and print what they covered")]

mod ahead;
mod balance;
mod cache;
mod captured;
mod cases;
mod code;
mod cuts;
mod depths;
mod enriched;
mod expert_parallel;
mod fused;
mod half;
mod injection;
mod layers;
mod lengths;
mod listed;
mod losses;
mod members;
mod parity;
mod planted;
mod reductions;
mod routing;
mod structure;
